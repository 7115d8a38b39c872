"""Periodised wavelet transforms as sums of shifted rows, one multiply-add for each tap and band.

No convolution of torch: those may round to TF32 on a GPU, and are slow in double precision.
"""

import torch
from torch.nn import functional

from ..bands.layout import band_slices, keep_bands, keep_rows, period_of, repeat_rows


def wavelet_analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_analysis`."""
    positions = x.shape[1]
    working = torch.promote_types(x.dtype, torch.float32)
    low, high = filter_pair(filters.to(working))
    rows = keep_rows(x, lengths).to(working)
    rows = functional.pad(rows, (0, 0, 0, period_of(positions, levels) - positions))
    periods = None if lengths is None else period_of(lengths, levels)
    details = []
    for _ in range(levels):
        rows, detail = _split(rows, low, high, periods)
        details.append(detail)
        periods = None if periods is None else periods >> 1
    packed = torch.cat([rows, *reversed(details)], dim=1)
    return keep_bands(packed, positions, levels, lengths).to(x.dtype)


def wavelet_synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_synthesis`."""
    working = torch.promote_types(bands.dtype, torch.float32)
    low, high = filter_pair(filters.to(working))
    packed = keep_bands(bands, length, levels, lengths).to(working)
    rows, *details = (packed[:, band] for band in band_slices(length, levels))
    for level, detail in zip(range(levels, 0, -1), details, strict=True):
        periods = None if lengths is None else period_of(lengths, levels) >> level
        rows = _merge(rows, detail, low, high, periods)
    return keep_rows(rows[:, :length], lengths).to(bands.dtype)


def filter_pair(filters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Low-pass taps (T, D) or (T,) -> low-pass h and high-pass (-1)^l h[T - 1 - l], (T, D) or (T, 1) each."""
    low = filters if filters.dim() == 2 else filters[:, None]
    signs = torch.ones_like(low)
    signs[1::2] = -1
    return low, low.flip(0) * signs


def _split(
    rows: torch.Tensor, low: torch.Tensor, high: torch.Tensor, periods: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One level: (B, 2 M, D) -> approximation and detail, (B, M, D) each. Rows past the period mean nothing."""
    half = rows.shape[1] // 2
    phases = repeat_rows(rows, periods, 0, len(low) - 2).unflatten(1, (-1, 2))
    approximation = detail = rows.new_zeros(())
    for tap in range(len(low)):
        shifted = phases[:, tap // 2 : tap // 2 + half, tap % 2]
        approximation = torch.addcmul(approximation, shifted, low[tap])
        detail = torch.addcmul(detail, shifted, high[tap])
    return approximation, detail


def _merge(
    approximation: torch.Tensor,
    detail: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    periods: torch.Tensor | None,
) -> torch.Tensor:
    """The adjoint of `_split`, one phase of the rows at a time: (B, M, D) twice -> (B, 2 M, D)."""
    half = approximation.shape[1]
    reach = len(low) // 2 - 1
    approximation = repeat_rows(approximation, periods, reach, 0)
    detail = repeat_rows(detail, periods, reach, 0)
    phases = []
    for phase in range(2):
        rows = approximation.new_zeros(())
        for step in range(reach + 1):
            earlier = slice(reach - step, reach - step + half)
            rows = torch.addcmul(rows, approximation[:, earlier], low[2 * step + phase])
            rows = torch.addcmul(rows, detail[:, earlier], high[2 * step + phase])
        phases.append(rows)
    return torch.stack(phases, dim=2).flatten(1, 2)
