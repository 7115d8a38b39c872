"""Periodised lifting in plain PyTorch: fixed steps as sums of shifted rows, learned ones in learned_portable.py."""

import torch
from torch.nn import functional

from ..bands.layout import bands_of, join_bands, keep_bands, keep_rows, period_of, repeat_rows
from . import learned_portable


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    if predict is not None:
        return learned_portable.analysis(x, predict, update, levels, lengths)
    positions = x.shape[1]
    working = torch.promote_types(x.dtype, torch.float32)
    rows = keep_rows(x, lengths).to(working)
    rows = functional.pad(rows, (0, 0, 0, period_of(positions, levels) - positions))
    details = []
    for level in range(1, levels + 1):
        periods = None if lengths is None else period_of(lengths, levels) >> level
        even, odd = rows.unflatten(1, (-1, 2)).unbind(2)
        detail = odd - _prediction(even, periods)
        rows = even + _correction(detail, periods)
        details.append(detail)
    bands = join_bands([rows, *reversed(details)])
    return keep_bands(bands, positions, levels, lengths).to(x.dtype)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    if predict is not None:
        return learned_portable.synthesis(bands, predict, update, levels, batch, length, lengths)
    working = torch.promote_types(bands.dtype, torch.float32)
    rows, *details = bands_of(keep_bands(bands, length, levels, lengths).to(working), batch, length, levels)
    for level, detail in zip(range(levels, 0, -1), details, strict=True):
        periods = None if lengths is None else period_of(lengths, levels) >> level
        even = rows - _correction(detail, periods)
        odd = detail + _prediction(even, periods)
        rows = torch.stack([even, odd], dim=2).flatten(1, 2)
    return keep_rows(rows[:, :length], lengths).to(bands.dtype)


def _prediction(even: torch.Tensor, periods: torch.Tensor | None) -> torch.Tensor:
    """The prediction of the odd row k from the even rows k and k + 1, (B, q, D)."""
    return (even + repeat_rows(even, periods, 0, 1)[:, 1:]) / 2


def _correction(detail: torch.Tensor, periods: torch.Tensor | None) -> torch.Tensor:
    """The amount that the details k - 1 and k add to the even row k, (B, q, D)."""
    return (detail + repeat_rows(detail, periods, 1, 0)[:, :-1]) / 4
