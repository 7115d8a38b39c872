"""Queries, keys and values that two attentions read, with one pass over their gradients."""

import torch


def heads_for_two(projected: torch.Tensor, heads: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """What a projection makes, (B, N, 3 D) -> queries, keys and values (B, H, N, d), once for each of two readers.

    Autograd would add up the gradients of both, and then copy the sums to where the projection has them.
    """
    found = _ForTwo.apply(projected, heads)
    return found[:3], found[3:]


class _ForTwo(torch.autograd.Function):
    """Sums of gradients are written where they belong."""

    @staticmethod
    def forward(ctx, projected: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
        return *_parts(projected, heads), *_parts(projected, heads)

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        pairs = list(zip(gradients[:3], gradients[3:], strict=True))
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # where nothing may be written into a part
            sums = torch.stack([(one + other).transpose(1, 2) for one, other in pairs], dim=2)
            return sums.flatten(2), None
        batch, heads, positions, width = gradients[0].shape
        sums = gradients[0].new_empty(batch, positions, 3 * heads * width)
        for (one, other), part in zip(pairs, _parts(sums, heads), strict=True):
            torch.add(one, other, out=part)
        return sums, None


def _parts(projected: torch.Tensor, heads: int) -> list[torch.Tensor]:
    """Views (B, H, N, d) of queries, keys and values."""
    return [part.transpose(1, 2) for part in projected.unflatten(2, (3, heads, -1)).unbind(2)]
