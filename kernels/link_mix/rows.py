"""The rows that the hand-written kernels of the links get, and those that they leave to be cleared."""

import torch

from ..common.rows import valid_rows
from .spans import spans


def prepare(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    starts: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """The kernels' arguments, value and weights in fp32 or float64, start and length (B, N) of each row's document; and
    the valid rows, (B, N), or None.
    """
    working, shape = torch.promote_types(value.dtype, torch.float32), value.shape[:2]
    found = spans(shape[1], lengths, None, value.device) if starts is None else (starts, counts)
    start, length = (part.expand(shape).to(torch.int64).contiguous() for part in found)
    return value.to(working), weights.to(working), offsets, start, length, valid_rows(lengths, shape[1])


def clear(rows: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """`rows` (B, N, ...) with zeros in those that are not valid, in place.

    Links do not leave their documents, so what padding holds, NaN too, has stayed there: nothing need be masked before.
    """
    if valid is None:
        return rows
    return rows.masked_fill_(~valid.reshape(*valid.shape, *[1] * (rows.dim() - 2)), 0)
