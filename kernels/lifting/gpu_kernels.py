"""Periodised lifting in Triton, one kernel for each step of a level."""

from typing import NamedTuple

import torch
import triton
from triton import language as tl

from ..bands.gpu import CHANNELS, ROWS, correlate, extent, grid, lengths_of
from ..bands.layout import band_slices, keep_rows, period_of


def lifting_analysis(x, predict, update, levels, lengths):
    """Packed bands (B, N', D) of x (B, N, D); see operator.py."""
    bands = x.new_empty(len(x), period_of(x.shape[1], levels), x.shape[2])
    _Steps(x, predict, update, levels, x.shape[1], lengths).analyse(x, bands)
    return bands


def lifting_synthesis(bands, predict, update, levels, length, lengths):
    """Rows (B, N, D) from packed bands."""
    rows, _ = _Steps(bands, predict, update, levels, length, lengths).synthesise(bands)
    return keep_rows(rows[:, :length], lengths).contiguous()


def lifting_analysis_backward(gradient, x, predict, update, levels, length, lengths):
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    steps = _Steps(gradient, predict, update, levels, length, lengths)
    kept = steps.none if x is None else steps.analyse(x, torch.empty_like(gradient))
    of_low = gradient[:, steps.slices[0]]
    for level in range(levels, 0, -1):
        even, detail = kept[level]
        of_rows = gradient.new_empty(len(gradient), 2 * of_low.shape[1], gradient.shape[2])
        of_even, of_odd = of_rows[:, ::2], of_rows[:, 1::2]
        of_detail = gradient[:, steps.slices[levels + 1 - level]]
        steps.update.differentiate(level, 1, Rows(of_low), detail, Rows(of_detail), of_odd)
        steps.predict.differentiate(level, -1, Rows(of_odd), even, Rows(of_low), of_even)
        of_low = of_rows
    return keep_rows(of_low[:, :length], lengths).contiguous(), steps.predict.of_taps, steps.update.of_taps


def lifting_synthesis_backward(gradient, bands, predict, update, levels, lengths):
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    steps = _Steps(gradient, predict, update, levels, length, lengths)
    kept = steps.none if bands is None else steps.synthesise(bands)[1]
    of_bands = gradient.new_empty(batch, period_of(length, levels), width)
    of_rows = gradient
    for level in range(1, levels + 1):
        even, detail = kept[level]
        of_even, of_odd = _halves(of_rows, level)
        of_detail = of_bands[:, steps.slices[levels + 1 - level]]
        of_low = of_bands[:, steps.slices[0]] if level == levels else _like(of_detail)
        steps.predict.differentiate(level, 1, of_odd, even, of_even, of_low)
        steps.update.differentiate(level, -1, Rows(of_low), detail, of_odd, of_detail)
        of_rows = of_low
    return of_bands, steps.predict.of_taps, steps.update.of_taps


# Steps: a level is a prediction and an update, alike in both directions of the transform and in their derivatives. The
# classes know a step's taps and signs; each use of it is one launch.


class Rows(NamedTuple):
    """Rows (B, .., D) of a level, and what they are of (bands/gpu.py)."""

    view: torch.Tensor
    of_x: str = "none"


def _halves(rows: torch.Tensor, level: int) -> tuple[Rows, Rows]:
    """Even and odd rows of what a level is made from, at level 1 x."""
    return Rows(rows[:, ::2], "even" if level == 1 else "none"), Rows(rows[:, 1::2], "odd" if level == 1 else "none")


def _like(rows: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape)


class _Steps:
    """Both steps of all levels. Details use rows from k on; approximations use details up to k."""

    def __init__(self, rows, predict, update, levels, length, lengths):
        self.levels = levels
        self.slices = band_slices(length, levels)
        self.none = [(None, None)] * (levels + 1)
        lengths = lengths_of(rows, length, lengths)
        self.predict = _Step(rows, predict, 0.5, False, levels, lengths)
        self.update = _Step(rows, update, 0.25, True, levels, lengths)

    def analyse(self, x: torch.Tensor, bands: torch.Tensor) -> list[tuple[Rows, Rows]]:
        """Fill the bands; even rows and details of each level, from 1 on."""
        kept, rows = self.none[:1], x
        for level in range(1, self.levels + 1):
            even, odd = _halves(rows, level)
            detail = bands[:, self.slices[self.levels + 1 - level]]
            rows = bands[:, self.slices[0]] if level == self.levels else _like(detail)
            self.predict.run(level, -1, odd, even, detail)
            self.update.run(level, 1, even, Rows(detail), rows)
            kept.append((even, Rows(detail)))
        return kept

    def synthesise(self, bands: torch.Tensor) -> tuple[torch.Tensor, list[tuple[Rows, Rows]]]:
        """Rows up to the period (B, N', D); even rows and details of each level, from 1 on."""
        kept, low = list(self.none), bands[:, self.slices[0]]
        for level in range(self.levels, 0, -1):
            rows = bands.new_empty(len(bands), 2 * low.shape[1], bands.shape[2])
            even, detail = Rows(rows[:, ::2]), Rows(bands[:, self.slices[self.levels + 1 - level]])
            self.update.run(level, -1, Rows(low), detail, even.view)
            self.predict.run(level, 1, detail, even, rows[:, 1::2])
            kept[level] = even, detail
            low = rows
        return low, kept


class _Step:
    """result = input +- scale * silu(sum over l of taps[l] source[k +- l]), without taps half of this for two rows."""

    def __init__(self, rows, taps, scale, backwards, levels, lengths):
        self.taps, self.scale, self.backwards = taps, scale, backwards
        self.levels, self.lengths = levels, lengths
        self.of_taps = rows.new_empty(0) if taps is None else torch.zeros_like(taps)

    def run(self, level: int, sign: int, rows: Rows, source: Rows, result: torch.Tensor) -> None:
        use = "sum" if self.taps is None else "silu"
        self._apply(use, level, sign * self.scale, self.backwards, rows, source, result)

    def differentiate(
        self, level: int, sign: int, gradient: Rows, source: Rows | None, before: Rows, of_source: torch.Tensor
    ) -> None:
        """The gradient of source from that of the result and from what it is `before`; adds to that of the taps.

        A fixed step does not read source.
        """
        if self.taps is None:
            self._apply("sum", level, sign * self.scale, not self.backwards, before, gradient, of_source)
            return
        of_sum = _like(of_source)
        self._apply("slope", level, sign * self.scale, self.backwards, gradient, source, of_sum)
        self._apply("sum", level, 1.0, not self.backwards, before, Rows(of_sum), of_source)
        count = len(self.taps)
        shift = 1 - count if self.backwards else 0
        of_taps = correlate(of_sum, source.view, self.lengths, count, self.levels, level, shift=shift, of_x=source.of_x)
        self.of_taps += of_taps.flip(0) if self.backwards else of_taps

    def _apply(self, use, level, scale, backwards, rows, source, result):
        """The sum is added, or its silu, or the slope of its silu is a factor: `use` is "sum", "silu" or "slope"."""
        fixed = self.taps is None
        _apply[grid(result.shape[1], result)](
            *(rows.view, *rows.view.stride()[:2], source.view, *source.view.stride()[:2]),
            *(result if fixed else self.taps, self.lengths, result, *result.stride()[:2], *result.shape[1:], scale),
            *(2 if fixed else len(self.taps), fixed, backwards, use, self.levels, level, rows.of_x, source.of_x),
            *(ROWS, CHANNELS),
        )


# The kernel: one step on a block of rows and channels. Indices run around the period of the sample.


@triton.jit
def _apply(
    rows,
    rows_sample,
    rows_row,
    source,
    source_sample,
    source_row,
    taps,
    lengths,
    result,
    result_sample,
    result_row,
    count,
    width,
    scale,
    TAPS: tl.constexpr,
    FIXED: tl.constexpr,
    BACKWARDS: tl.constexpr,
    USE: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    ROWS_OF_X: tl.constexpr,
    SOURCE_OF_X: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A block of a step's result; rows at and past the sample's period are zero."""
    k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid_rows = extent(lengths, sample, LEVELS, LEVEL, ROWS_OF_X)
    period, valid_source = extent(lengths, sample, LEVELS, LEVEL, SOURCE_OF_X)
    around = tl.maximum(period, 1)
    total = tl.zeros((ROWS, CHANNELS), result.dtype.element_ty)
    for tap in range(TAPS):
        # A multiple of the period keeps the row from being negative.
        row = (k + (TAPS * around - tap if BACKWARDS else tap)) % around
        there = ((k < period) & (row < valid_source))[:, None] & (channel < width)
        value = tl.load(source + sample * source_sample + row[:, None] * source_row + channel, there, 0)
        if FIXED:
            total += value
        else:
            total += value * tl.load(taps + tap * width + channel, channel < width, 0)
    there = (k < valid_rows)[:, None] & (channel < width)
    value = tl.load(rows + sample * rows_sample + k[:, None] * rows_row + channel, there, 0)
    if USE == "sum":
        value += scale * total
    else:
        share = 1 / (1 + tl.exp(-total))
        if USE == "silu":
            value += scale * (total * share)
        else:
            value *= scale * (share * (1 + total * (1 - share)))
    value = tl.where((k < period)[:, None], value, 0)
    place = result + sample * result_sample + k[:, None] * result_row + channel
    tl.store(place, value, (k < count)[:, None] & (channel < width))
