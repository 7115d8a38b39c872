"""Rotary positions as one launch each way, as a compiler makes them of plain PyTorch's."""

from collections.abc import Callable

import torch

from .cards import Launch
from .softmax import Record


def in_one_launch(record: Record) -> Callable[..., tuple[torch.Tensor, ...]]:
    """In place of `ops.rotary_heads`: results of the right shapes, by a launch that reads and writes all heads once."""

    def rotary_heads(projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _Heads.apply(projected, cosine.nbytes + sine.nbytes, record)

    return rotary_heads


class _Heads(torch.autograd.Function):
    """(B, N, 3, H, d) -> three tensors (B, H, N, d)."""

    @staticmethod
    def forward(ctx, projected, angles, record):
        ctx.shape, ctx.angles, ctx.record = projected.shape, angles, record
        batch, positions, parts, heads, width = projected.shape
        record(Launch("rotary positions", 1, 2 * projected.nbytes + angles))
        made = (projected.new_empty(batch, positions, heads, width) for _ in range(parts))
        return tuple(part.transpose(1, 2) for part in made)

    @staticmethod
    def backward(ctx, *gradients):
        whole = gradients[0].new_empty(ctx.shape)
        ctx.record(Launch("rotary positions backward", 1, 2 * whole.nbytes + ctx.angles))
        return whole, None, None
