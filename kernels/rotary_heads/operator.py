"""Heads with rotary positions as operators of torch."""

import torch

from ..operators import operator
from .portable import rotary_heads as portable


def rotary_heads(
    kernels: str, projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.rotary_heads`."""
    is_fp16_in_cpp = kernels == "cpu_kernels" and projected.dtype == torch.float16  # its compiler may not know that
    if torch.compiler.is_compiling() or is_fp16_in_cpp:
        # Compilers make one pass of plain PyTorch, and exported programs then need nothing of ours.
        return portable(projected, cosine, sine)
    return tuple(part.transpose(1, 2) for part in _Heads.apply(kernels, projected, cosine, sine))


@operator(__package__, "rotary_heads")
def _take_apart(
    kernels: str, projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, N, 3, H, d) -> three tensors (B, N, H, d). All arguments are contiguous."""
    batch, positions, parts, heads, features = projected.shape
    return tuple(projected.new_empty(batch, positions, heads, features) for _ in range(parts))


@operator(__package__, "rotary_heads_backward")
def _put_together(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
) -> torch.Tensor:
    """Gradients of the three -> that of what they were made of. All arguments are contiguous."""
    batch, positions, heads, features = query.shape
    return query.new_empty(batch, positions, 3, heads, features)


# Functions, where other operators register a derivative: the softmax baseline goes through torch.func, too.


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(kernels: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _take_apart(kernels, *(tensor.contiguous() for tensor in tensors))

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.kernels, _, *angles = inputs
        ctx.save_for_backward(*angles)

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        return None, _Joined.apply(ctx.kernels, *gradients, *ctx.saved_tensors), None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(kernels: str, *tensors: torch.Tensor) -> torch.Tensor:
        return _put_together(kernels, *(tensor.contiguous() for tensor in tensors))

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: torch.Tensor) -> None:
        ctx.kernels, *_, cosine, sine = inputs
        ctx.save_for_backward(cosine, sine)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *_Heads.apply(ctx.kernels, gradient, *ctx.saved_tensors), None, None
