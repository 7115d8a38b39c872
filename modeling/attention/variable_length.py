"""Softmax attention within segments of a flat batch, by the GPU kernels that PyTorch has for it.

Those kernels are FlashAttention and memory-efficient attention with cumulative lengths. PyTorch's public ways to them
do not serve here, and end in the two operators called below:

- jagged nested tensors are a prototype. They ask the card for a kernel in every call, fall back without a word to one
  that waits for the device, and cannot be traced where there is no GPU;
- `torch.nn.attention.varlen` is not in torch 2.7, and knows no dropout, no fp32 and no card before the A100.
"""

import math

import torch
from torch.nn import functional

from ..context import Segments

# Kernels, as `kernel_for` names them.
FLASH, MEMORY_EFFICIENT = "flash", "memory_efficient"
# Features of a head: FlashAttention's backward pass takes more on some cards only.
MOST_FLASH_FEATURES = 192
# Both kernels read features in groups of 16 bytes.
FEATURES_MULTIPLE = 8


def kernel_for(query: torch.Tensor, dropout: float) -> str | None:
    """The kernel that can run on these queries (B, H, N, d): FLASH, MEMORY_EFFICIENT, or None where neither can.

    As for `scaled_dot_product_attention`, `torch.backends.cuda.enable_flash_sdp(False)` and `enable_mem_efficient_sdp`
    forbid one. Memory-efficient attention is not taken

    - with dropout: by their source, its two passes count the random numbers of segments in different ways;
    - under torch.compile, nor on fake tensors without a GPU: its backward pass has no working shape function.
    """
    if not query.is_cuda or torch.version.hip is not None or query.numel() == 0:
        return None
    has_flash, has_memory_efficient = _offered(query.device)
    if query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= MOST_FLASH_FEATURES and has_flash:
        return FLASH
    if query.dtype == torch.float64 or dropout > 0 or torch.compiler.is_compiling():
        return None
    return MEMORY_EFFICIENT if has_memory_efficient else None


@torch.compiler.assume_constant_result  # torch.compile cannot trace what torch allows
def _offered(device: torch.device) -> tuple[bool, bool]:
    """Whether a GPU runs FlashAttention, and memory-efficient attention."""
    has_gpu = torch.cuda.is_available()
    # Fake tensors without a GPU stand for those of an A100.
    is_ampere = not has_gpu or torch.cuda.get_device_properties(device).major >= 8
    return (
        is_ampere and torch.backends.cuda.flash_sdp_enabled(),
        has_gpu and torch.backends.cuda.mem_efficient_sdp_enabled(),
    )


def variable_length_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    kernel: str,
    *,
    causal: bool,
    dropout: float,
) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V within each segment, without waiting for the device; no (N, N) tensor is made.

    Args:
        query: (B, H, N, d) on a GPU, as key and value, finite everywhere.
        segments: of the B N positions, which they cover.
        kernel: what `kernel_for` gives.
        causal: a position sees no later one.
        dropout: probability for each weight.

    Returns:
        (B, H, N, d).
    """
    batch, _, positions, features = query.shape
    flat = [_flat(tensor) for tensor in (query, key, value)]
    offsets, longest = segments
    lengths = (offsets, offsets, longest, longest, dropout)
    scale = 1 / math.sqrt(features)
    if kernel == FLASH:
        mixed = torch.ops.aten._flash_attention_forward(*flat, *lengths, causal, False, scale=scale)[0]
    else:
        query, key, value = (tensor.unsqueeze(0) for tensor in flat)
        keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flat)
        mixed = torch.ops.aten._efficient_attention_forward(
            query, key, value, None, *lengths, int(causal), keeps, scale=scale
        )[0].squeeze(0)
    if mixed.shape[-1] != features:  # not in vain: the derivative of a part is a copy
        mixed = mixed.narrow(-1, 0, features)
    return mixed.unflatten(0, (batch, positions)).transpose(1, 2)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """(B, H, N, d) -> (B N, H, d'), d' the next multiple of FEATURES_MULTIPLE: zeros change no product."""
    tensor = tensor.transpose(1, 2).flatten(0, 1)
    missing = -tensor.shape[-1] % FEATURES_MULTIPLE
    return functional.pad(tensor, (0, missing)) if missing else tensor
