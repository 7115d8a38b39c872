"""Periodised wavelet transforms as sums of shifted rows, one multiply-add for each tap and both bands.

No convolution of torch: those may round to TF32 on a GPU, and are slow in double precision. Analysis and synthesis are
adjoint, so each is the other's derivative; autograd would go back tap by tap.
"""

import torch
from torch.nn import functional

from ..bands.layout import bands_of, join_bands, keep_bands, keep_rows, period_of, repeat_rows
from ..common.devices import for_gpu


def wavelet_analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_analysis`."""
    return _Analysis.apply(x, _working_taps(filters, x), levels, lengths)


def wavelet_synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, batch: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_synthesis`."""
    return _Synthesis.apply(bands, _working_taps(filters, bands), levels, batch, length, lengths)


def _working_taps(filters: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Taps (T, D) or (T,) -> (T, D) or (T, 1), in fp32 or in the rows' float64."""
    columns = filters if filters.dim() == 2 else filters[:, None]
    return columns.to(torch.promote_types(rows.dtype, torch.float32))


# The two transforms and their derivatives, which are made of what can be differentiated in turn. Rows in half precision
# are read as they are: their products with the taps are the taps' dtype, and so is what one level hands to the next.


class _Analysis(torch.autograd.Function):
    """Bands (B N', D) of x (B, N, D), in its dtype; taps (T, D) or (T, 1)."""

    @staticmethod
    def forward(ctx, x, filters, levels, lengths):
        ctx.save_for_backward(x, filters, lengths)
        ctx.levels = levels
        rows, details = _period(x, levels, lengths), []
        for periods in _periods(levels, lengths):
            rows, detail = _split(rows, filters, periods)
            details.append(detail)
        bands = join_bands([rows, *reversed(details)])
        return keep_bands(bands.to(x.dtype), x.shape[1], levels, lengths)

    @staticmethod
    def backward(ctx, gradient):
        x, filters, lengths = ctx.saved_tensors
        of_x = _Synthesis.apply(gradient, filters, ctx.levels, *x.shape[:2], lengths)
        return of_x, _of_filters(x, gradient, filters, ctx.levels, lengths), None, None


class _Synthesis(torch.autograd.Function):
    """Rows (B, N, D) from bands (B N', D), in their dtype; taps (T, D) or (T, 1)."""

    @staticmethod
    def forward(ctx, bands, filters, levels, batch, length, lengths):
        ctx.save_for_backward(bands, filters, lengths)
        ctx.levels = levels
        rows, *details = _bands(bands, batch, length, levels, lengths)
        for detail, periods in zip(details, reversed(_periods(levels, lengths)), strict=True):
            rows = _merge(rows, detail, filters, periods)
        return keep_rows(rows[:, :length].to(bands.dtype), lengths).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        bands, filters, lengths = ctx.saved_tensors
        of_bands = _Analysis.apply(gradient, filters, ctx.levels, lengths)
        return of_bands, _of_filters(gradient, bands, filters, ctx.levels, lengths), None, None, None, None


def _of_filters(
    x: torch.Tensor, bands: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """The derivative of <bands, analysis(x)>, which is <synthesis(bands), x>, by the taps."""
    periods = _periods(levels, lengths)
    rows = [_period(x, levels, lengths)]
    for period in periods[:-1]:
        rows.append(_split(rows[-1], filters, period)[0])
    low, *details = _bands(bands, *x.shape[:2], levels, lengths)
    total = torch.zeros_like(filters)
    for detail, period in zip(details, reversed(periods), strict=True):
        pair, before = torch.stack([low, detail], dim=2).to(filters.dtype), rows.pop()
        sums = torch.stack([(pair * one).sum((0, 1)) for one in _shifted(before, len(filters), period)])
        # Of taps that all channels share, each has the sum.
        low_sums, high_sums = (sums if filters.shape[1] > 1 else sums.sum(2, keepdim=True)).unbind(1)
        total = total + low_sums + high_sums.flip(0) * -_signs(filters)
        if rows:
            low = keep_rows(_merge(low, detail, filters, period), period)
    return total


# One level.


def _split(
    rows: torch.Tensor, filters: torch.Tensor, periods: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, 2 M, D) -> approximation and detail, (B, M, D) each. Rows past the period mean nothing."""
    taps = torch.stack([filters, _high_pass(filters)], dim=1)
    first, *others = zip(_shifted(rows, len(filters), periods), taps, strict=True)
    pair = torch.mul(*first)
    for shifted, both in others:
        pair.addcmul_(shifted, both)
    return pair.unbind(2)


def _shifted(rows: torch.Tensor, taps: int, periods: torch.Tensor | None) -> list[torch.Tensor]:
    """For each tap the rows (B, M, 1, D) of (B, 2 M, D) that it is multiplied with."""
    half = rows.shape[1] // 2
    phases = _readable(repeat_rows(rows, periods, 0, taps - 2)).unflatten(1, (-1, 2))
    return [phases[:, tap // 2 : tap // 2 + half, tap % 2, None] for tap in range(taps)]


def _merge(
    approximation: torch.Tensor, detail: torch.Tensor, filters: torch.Tensor, periods: torch.Tensor | None
) -> torch.Tensor:
    """The adjoint of `_split`, both phases of the rows together: (B, M, D) twice -> (B, 2 M, D)."""
    half, reach = approximation.shape[1], len(filters) // 2 - 1
    periods = None if periods is None else periods >> 1
    approximation = _readable(repeat_rows(approximation, periods, reach, 0))
    detail = _readable(repeat_rows(detail, periods, reach, 0))
    low, high = (taps.unflatten(0, (-1, 2)) for taps in (filters, _high_pass(filters)))
    rows = approximation[:, reach:, None] * low[0]
    rows.addcmul_(detail[:, reach:, None], high[0])
    for step in range(1, reach + 1):
        earlier = slice(reach - step, reach - step + half)
        rows.addcmul_(approximation[:, earlier, None], low[step])
        rows.addcmul_(detail[:, earlier, None], high[step])
    return rows.flatten(1, 2)


def _readable(rows: torch.Tensor) -> torch.Tensor:
    """Rows that are read once for each tap: on a CPU a product of two dtypes would convert them every time."""
    return rows if for_gpu(rows) else rows.to(torch.promote_types(rows.dtype, torch.float32))


def _high_pass(low: torch.Tensor) -> torch.Tensor:
    """(-1)^l h[T - 1 - l] of low-pass taps h, (T, D) or (T, 1)."""
    return low.flip(0) * _signs(low)


def _signs(taps: torch.Tensor) -> torch.Tensor:
    """(-1)^l, (T, 1)."""
    signs = torch.ones_like(taps[:, :1])
    signs[1::2] = -1
    return signs


# Rows and bands with zeros where a sample has none, and the periods of the levels, from the first on.


def _period(x: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    rows, missing = keep_rows(x, lengths), period_of(x.shape[1], levels) - x.shape[1]
    # A program that is traced takes other lengths, too, of which some lack rows.
    return functional.pad(rows, (0, 0, 0, missing)) if torch.compiler.is_compiling() or missing else rows


def _bands(
    bands: torch.Tensor, batch: int, positions: int, levels: int, lengths: torch.Tensor | None
) -> list[torch.Tensor]:
    return bands_of(keep_bands(bands, positions, levels, lengths), batch, positions, levels)


def _periods(levels: int, lengths: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Of what each level splits."""
    return [None if lengths is None else period_of(lengths, levels) >> level for level in range(levels)]
