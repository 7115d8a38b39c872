"""Softmax attention as the kernels that PyTorch takes on a GPU: FlashAttention-2 or memory-efficient attention.

All take the operations of FlashAttention-2, of which none is left out or done twice: for each pair of a query and a key
4 d forward and 10 d backward, in each head of d channels. Only attention with a dense mask counts twice as many: its
kernel, the memory-efficient one, reaches half of the other's rate.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .cards import Launch

Record = Callable[[Launch], None]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of a query and a key that are computed, in all samples, of one head.

    Args:
        count: of the pairs.
        mask: bytes of a dense mask as a bias that one head reads; None: there is no mask.
        mask_elements: elements of a mask of truth values, each a byte that is made two.
    """

    count: int
    mask: int | None = None
    mask_elements: int = 0


class _Attention(torch.autograd.Function):
    """Results of the right shapes; `record` gets the launches, forward and backward."""

    @staticmethod
    def forward(ctx, query, key, value, pairs, flash, record):
        ctx.arguments = pairs, flash, record
        result = torch.empty_like(query)
        logarithms = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, result, logarithms)
        for launch in forward_launches(query, key, pairs, flash):
            record(launch)
        return result

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, *_ = ctx.saved_tensors
        pairs, flash, record = ctx.arguments
        for launch in backward_launches(query, key, pairs, flash):
            record(launch)
        return *(torch.empty_like(tensor) for tensor in (query, key, value)), None, None, None


def forward_launches(query: torch.Tensor, key: torch.Tensor, pairs: Pairs, flash: bool) -> list[Launch]:
    """Of query and key (B, H, N, d): all of them, the result and the logarithms of the sums are moved once."""
    heads, width = query.shape[1], query.shape[3]
    moved = 2 * (query.nbytes + key.nbytes) + 4 * query.numel() // width
    operations = 4 * heads * width * pairs.count
    if pairs.mask is None:
        name = "flash attention" if flash else "memory-efficient attention"
        return [Launch(name, 1, moved, operations, "tensor core")]
    made = [Launch("mask to bias", 1, 3 * pairs.mask_elements)] if pairs.mask_elements else []
    return [*made, Launch("masked attention", 1, moved + heads * pairs.mask, 2 * operations, "tensor core")]


def backward_launches(query: torch.Tensor, key: torch.Tensor, pairs: Pairs, flash: bool) -> list[Launch]:
    """The product of result and gradient; the derivative; FlashAttention adds up that of the queries in fp32."""
    heads, width, size = query.shape[1], query.shape[3], query.nbytes
    operations = 10 * heads * width * pairs.count
    others = 4 * (query.nbytes + key.nbytes)
    product = Launch("attention backward, rows", 1, 2 * size)
    if pairs.mask is not None:
        moved = others + 2 * heads * pairs.mask
        return [product, Launch("masked attention backward", 1, moved, 2 * operations, "tensor core")]
    if not flash:
        return [product, Launch("memory-efficient attention backward", 1, others, operations, "tensor core")]
    return [
        product,
        Launch("flash attention backward", 1, others + 4 * size, operations, "tensor core"),
        Launch("attention backward, convert", 1, 3 * size),
    ]


class SoftmaxStandIn(TorchFunctionMode):
    """Takes the place of every call of scaled_dot_product_attention."""

    def __init__(self, record: Record, flash: bool):
        super().__init__()
        self.record, self.flash = record, flash

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is functional.scaled_dot_product_attention:
            return self.attend(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def attend(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
        """The result's shape for query (B, H, N, d), and key and value (B, H, M, d)."""
        batch, _, rows, _ = query.shape
        columns = key.shape[2]
        count = batch * rows * columns
        if attn_mask is None:
            pairs = Pairs(count // 2 if is_causal else count)
        else:
            converted = attn_mask.numel() if attn_mask.dtype == torch.bool else 0
            pairs = Pairs(count, 2 * batch * attn_mask.shape[-2] * columns, converted)
        return _Attention.apply(query, key, value, pairs, self.flash, self.record)


def variable_length(record: Record, flash: bool, lengths: list[int]) -> Callable[..., torch.Tensor]:
    """In place of SoftmaxAttention.attend: only pairs of the same document, whose lengths are those of all samples."""
    pairs = Pairs(sum(length * length for length in lengths))

    def attend(module, query, key, value, context):
        return _Attention.apply(query, key, value, pairs, flash, record)

    return attend
