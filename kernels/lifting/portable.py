"""Periodised lifting as sums of shifted rows."""

import torch
from torch.nn import functional

from ..bands.layout import band_slices, keep_bands, keep_rows, period_of, repeat_rows


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    positions = x.shape[1]
    working = torch.promote_types(x.dtype, torch.float32)
    rows = keep_rows(x, lengths).to(working)
    rows = functional.pad(rows, (0, 0, 0, period_of(positions, levels) - positions))
    details = []
    for level in range(1, levels + 1):
        periods = None if lengths is None else period_of(lengths, levels) >> level
        even, odd = rows.unflatten(1, (-1, 2)).unbind(2)
        detail = odd - _prediction(even, predict, periods)
        rows = even + _correction(detail, update, periods)
        details.append(detail)
    packed = torch.cat([rows, *reversed(details)], dim=1)
    return keep_bands(packed, positions, levels, lengths).to(x.dtype)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    working = torch.promote_types(bands.dtype, torch.float32)
    packed = keep_bands(bands, length, levels, lengths).to(working)
    rows, *details = (packed[:, band] for band in band_slices(length, levels))
    for level, detail in zip(range(levels, 0, -1), details, strict=True):
        periods = None if lengths is None else period_of(lengths, levels) >> level
        even = rows - _correction(detail, update, periods)
        odd = detail + _prediction(even, predict, periods)
        rows = torch.stack([even, odd], dim=2).flatten(1, 2)
    return keep_rows(rows[:, :length], lengths).to(bands.dtype)


def _prediction(even: torch.Tensor, taps: torch.Tensor | None, periods: torch.Tensor | None) -> torch.Tensor:
    """The prediction of the odd row k from the even rows from k on, (B, q, D)."""
    if taps is None:
        return (even + repeat_rows(even, periods, 0, 1)[:, 1:]) / 2
    following = repeat_rows(even, periods, 0, len(taps) - 1)
    total = even.new_zeros(())
    for tap, weight in enumerate(taps.to(even.dtype)):
        total = torch.addcmul(total, following[:, tap : tap + even.shape[1]], weight)
    return functional.silu(total) / 2


def _correction(detail: torch.Tensor, taps: torch.Tensor | None, periods: torch.Tensor | None) -> torch.Tensor:
    """The amount that the details up to k add to the even row k, (B, q, D)."""
    if taps is None:
        return (detail + repeat_rows(detail, periods, 1, 0)[:, :-1]) / 4
    reach = len(taps) - 1
    earlier = repeat_rows(detail, periods, reach, 0)
    total = detail.new_zeros(())
    for tap, weight in enumerate(taps.to(detail.dtype)):
        total = torch.addcmul(total, earlier[:, reach - tap : reach - tap + detail.shape[1]], weight)
    return functional.silu(total) / 4
