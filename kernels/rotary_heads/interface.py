"""Queries, keys and values of heads with rotary positions: what they are."""

import torch

from ..selection import select
from .portable import rotary_heads as portable
from .reference import rotary_heads as reference


def rotary_heads(
    projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take queries, keys and values apart, and turn each pair (i, i + d / 2) of features of the first two by the angle
    of its position (Su et al., RoFormer, 2021, eq. 34).

    Pairs are made of two halves, as in transformers' Llama and ModernBERT, where the paper has neighbours: an order of
    the features, which the projections before them learn anyway. Products of queries and keys depend on the distance of
    their positions alone.

    Args:
        projected: (B, N, 3, H, d), any floating dtype, d even.
        cosine: of each pair's angle, (N, d) or (B, 1, N, d), for both of its features; fp32, float64 for float64.
        sine: its sine, negative for the first half of the features; like the cosine. Neither has a gradient.

    Returns:
        Three tensors (B, H, N, d) of projected's dtype, computed in that of the angles.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together.
    """
    if projected.dim() != 5 or projected.shape[2] != 3 or projected.shape[-1] % 2:
        raise ValueError(f"projected has shape {tuple(projected.shape)}; needed: (B, N, 3, H, d), d even")
    if not projected.is_floating_point():
        raise ValueError(f"projected has dtype {projected.dtype}; needed: a floating dtype")
    batch, positions, _, _, features = projected.shape
    shapes = (positions, features), (batch, 1, positions, features)
    wide = torch.promote_types(projected.dtype, torch.float32)
    for name, tensor in (("cosine", cosine), ("sine", sine)):
        if tuple(tensor.shape) not in shapes or tensor.shape != cosine.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed, for both: {shapes[0]} or {shapes[1]}")
        if (tensor.dtype, tensor.device) != (wide, projected.device):
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, on {tensor.device}; needed: {wide}, on {projected.device}"
            )
    run = select("rotary_heads", projected.device, {"portable": portable, "reference": reference}, in_graphs=False)
    return run(projected, cosine, sine)
