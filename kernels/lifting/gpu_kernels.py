"""Periodised lifting in Triton, one kernel for each step of a level, and three for its derivative.

Rows and bands are in the dtype of the arguments, what is between two levels in that of the taps. The derivative takes
its rows from the bands, for each level can be undone: that of analysis does so on its way from the last level back.
"""

from typing import NamedTuple

import torch
import triton
from triton import language as tl

from ..bands.gpu import CHANNELS, ROWS, extent, grid, valid_of
from ..bands.layout import bands_of, keep_rows, period_of
from ..common.grids import checked
from ..common.interpreter import interpreted

# Parts of a sum over all rows: programs for each block of channels, each of which has a sum.
PARTS = 2 if interpreted() else 128


def lifting_analysis(x, predict, update, levels, lengths):
    """Bands (B N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = x.new_empty(batch * period_of(positions, levels), width)
    steps = _Steps(x, predict, update, levels, batch, positions, lengths)
    rows = x
    for level in range(1, levels + 1):
        even, odd = _halves(rows, level)
        detail = steps.detail(bands, level)
        rows = steps.low(bands) if level == levels else steps.between(x, detail.shape[1])
        steps.predict.run(level, -1, odd, even, detail)
        steps.update.run(level, 1, even, Rows(detail), rows)
    return bands


def lifting_synthesis(bands, predict, update, levels, batch, length, lengths):
    """Rows (B, N, D) from bands (B N', D)."""
    steps = _Steps(bands, predict, update, levels, batch, length, lengths)
    rows = steps.low(bands)
    for level in range(levels, 0, -1):
        low = rows
        rows = steps.above(bands, level)
        steps.undo(level, low, steps.detail(bands, level), rows)
    return keep_rows(rows[:, :length], lengths).contiguous()


def lifting_analysis_backward(gradient, bands, predict, update, levels, batch, length, lengths):
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    steps = _Steps(gradient, predict, update, levels, batch, length, lengths)
    of_low = steps.low(gradient)
    low = None if bands is None else steps.low(bands)
    for level in range(levels, 0, -1):
        of_rows = steps.above(gradient, level)
        of_even, of_odd = of_rows[:, ::2], of_rows[:, 1::2]
        of_detail = Rows(steps.detail(gradient, level))
        if bands is None:
            steps.update.transpose(level, 1, of_detail, of_low, of_odd)
            steps.predict.transpose(level, -1, Rows(of_low), of_odd, of_even)
        else:
            rows, detail = steps.between(gradient, of_rows.shape[1]), steps.detail(bands, level)
            even, odd = rows[:, ::2], None if level == 1 else rows[:, 1::2]
            of_sum = steps.update.differentiate(level, 1, Rows(of_low), detail, Undone(low, even))
            passed = Passed(steps.update.taps, of_sum, of_odd)
            of_sum = steps.predict.differentiate(level, -1, of_detail, even, Undone(detail, odd), passed)
            steps.predict.transpose(level, 1, Rows(of_low), of_sum, of_even)
            low = rows
        of_low = of_rows
    return keep_rows(of_low[:, :length], lengths).contiguous(), steps.predict.of_taps(), steps.update.of_taps()


def lifting_synthesis_backward(gradient, bands, predict, update, levels, lengths):
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    steps = _Steps(gradient, predict, update, levels, batch, length, lengths)
    evens = None if bands is None else steps.evens(bands)
    of_bands = gradient.new_empty(batch * period_of(length, levels), width)
    of_rows = gradient
    for level in range(1, levels + 1):
        of_even, of_odd = _halves(of_rows, level)
        of_detail = steps.detail(of_bands, level)
        of_low = steps.low(of_bands) if level == levels else steps.between(gradient, of_detail.shape[1])
        if bands is None:
            steps.predict.transpose(level, 1, of_even, of_odd.view, of_low, of_odd.of_x)
            steps.update.transpose(level, -1, of_odd, of_low, of_detail)
        else:
            of_sum = steps.predict.differentiate(level, 1, of_odd, evens[level])
            passed = Passed(steps.predict.taps, of_sum, of_low)
            of_sum = steps.update.differentiate(level, -1, of_even, steps.detail(bands, level), None, passed)
            steps.update.transpose(level, 1, of_odd, of_sum, of_detail)
        of_rows = of_low
    return of_bands, steps.predict.of_taps(), steps.update.of_taps()


# Steps: a level is a prediction and an update, alike in both directions of the transform and in their derivatives. The
# classes know a step's taps and scales; each use of it is one launch.


class Rows(NamedTuple):
    """Rows (B, .., D) of a level, and what they are of (bands/gpu.py)."""

    view: torch.Tensor
    of_x: str = "none"


class Undone(NamedTuple):
    """What a step has made, and where the rows that it was made from shall be; None: nowhere."""

    made: torch.Tensor
    rows: torch.Tensor | None


class Passed(NamedTuple):
    """The gradient of another step's sums, which reaches a gradient by its taps, and where the two shall be together.

    Both steps read in the same direction then: one's transpose reads as the other one does.
    """

    taps: torch.Tensor
    of_sum: torch.Tensor
    result: torch.Tensor


def _halves(rows: torch.Tensor, level: int) -> tuple[Rows, Rows]:
    """Even and odd rows of what a level is made from, at level 1 x."""
    return Rows(rows[:, ::2], "even" if level == 1 else "none"), Rows(rows[:, 1::2], "odd" if level == 1 else "none")


class _Steps:
    """Both steps of all levels. Details use rows from k on; approximations use details up to k."""

    def __init__(self, rows, predict, update, levels, batch, length, lengths):
        self.levels, self.batch, self.length = levels, batch, length
        valid = valid_of(lengths, length)
        self.predict = _Step(rows, predict, 0.5, False, levels, valid)
        self.update = _Step(rows, update, 0.25, True, levels, valid)

    def low(self, bands: torch.Tensor) -> torch.Tensor:
        """The approximation among the bands."""
        return bands_of(bands, self.batch, self.length, self.levels)[0]

    def detail(self, bands: torch.Tensor, level: int) -> torch.Tensor:
        """The details of a level among the bands."""
        return bands_of(bands, self.batch, self.length, self.levels)[-level]

    def between(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Room for so many rows between two levels."""
        return rows.new_empty(self.batch, count, rows.shape[-1], dtype=self.predict.taps.dtype)

    def above(self, bands: torch.Tensor, level: int) -> torch.Tensor:
        """Room for the rows that a level is made from: x in the dtype of the bands, else rows between two levels."""
        period = period_of(self.length, self.levels)
        if level == 1:
            return bands.new_empty(self.batch, period, bands.shape[1])
        return self.between(bands, period >> (level - 1))

    def undo(self, level: int, low: torch.Tensor, detail: torch.Tensor, rows: torch.Tensor) -> None:
        """Fill the rows (B, 2 q, D) that a level was made from."""
        even = Rows(rows[:, ::2])
        self.update.run(level, -1, Rows(low), Rows(detail), even.view)
        self.predict.run(level, 1, Rows(detail), even, rows[:, 1::2])

    def evens(self, bands: torch.Tensor) -> dict[int, torch.Tensor]:
        """The even rows of each level."""
        found, low = {}, self.low(bands)
        for level in range(self.levels, 1, -1):
            rows = self.between(bands, 2 * low.shape[1])
            self.undo(level, low, self.detail(bands, level), rows)
            found[level], low = rows[:, ::2], rows
        found[1] = self.between(bands, low.shape[1])
        self.update.run(1, -1, Rows(low), Rows(self.detail(bands, 1)), found[1])
        return found


class _Step:
    """result = input +- scale * silu(sum over l of taps[l] source[k +- l]), without taps half of this for two rows."""

    def __init__(self, rows, taps, scale, backwards, levels, valid):
        self.fixed = taps is None
        working = torch.promote_types(rows.dtype, torch.float32)
        self.taps = rows.new_empty(0, dtype=working) if self.fixed else taps
        self.scale, self.backwards = scale, backwards
        self.levels, self.valid = levels, valid
        self.parts = self.left = None

    def run(self, level: int, sign: int, rows: Rows, source: Rows, result: torch.Tensor) -> None:
        """result = rows +- what the step adds."""
        use = "sum" if self.fixed else "silu"
        self._apply(use, level, sign * self.scale, self.backwards, rows, source, result)

    def transpose(
        self, level: int, sign: int, rows: Rows, source: torch.Tensor, result: torch.Tensor, of_x: str = "none"
    ) -> None:
        """result = rows +- the transposed sum over source, which for learned taps is the gradient of sums."""
        scale = sign * self.scale if self.fixed else sign
        self._apply("sum", level, scale, not self.backwards, rows, Rows(source, of_x), result)

    def differentiate(
        self,
        level: int,
        sign: int,
        gradient: Rows,
        source: torch.Tensor,
        undone: Undone | None = None,
        passed: Passed | None = None,
    ) -> torch.Tensor:
        """The gradient of the learned sums from that of the step's result; keeps its part of the gradient of the taps.

        Args:
            undone: what the step is undone with on the way.
            passed: what is added to `gradient` first.
        """
        batch, count, width = source.shape
        if self.parts is None:
            counts = [period_of(self.valid.positions, self.levels) >> level for level in range(1, self.levels + 1)]
            parts = sum(_parts(batch, count) for count in counts)
            self.parts = self.left = self.taps.new_empty(parts, *self.taps.shape)
        parts, blocks = _parts(batch, count), batch * triton.cdiv(count, ROWS)
        of_sum = self.taps.new_empty(batch, count, width)
        undoes, passes = undone is not None and undone.rows is not None, passed is not None
        # What is not there is not touched: any tensor stands for it.
        made, rows = undone if undoes else (source, of_sum)
        through = passed or Passed(self.taps, of_sum, of_sum)
        _differentiate[checked(parts, triton.cdiv(width, CHANNELS))](
            *(gradient.view, *gradient.view.stride()[:2], source, *source.stride()[:2], self.taps, of_sum, self.left),
            *(*self.valid, made, *made.stride()[:2], rows, *rows.stride()[:2]),
            *(through.of_sum, through.taps, through.result, *through.result.stride()[:2]),
            *(batch, count, width, triton.cdiv(blocks, parts), sign * self.scale, len(self.taps), len(through.taps)),
            *(self.backwards, undoes, passes, self.levels, level, gradient.of_x),
            *(triton.next_power_of_2(len(self.taps)), ROWS, CHANNELS),
            num_warps=8,  # of 4 some spill
        )
        self.left = self.left[parts:]
        return of_sum

    def of_taps(self) -> torch.Tensor:
        """The gradient of the taps."""
        return self.taps if self.fixed else self.parts.sum(0)

    def _apply(self, use, level, scale, backwards, rows, source, result):
        """The sum is added, or its silu: `use` is "sum" or "silu"."""
        _apply[grid(result.shape[1], result)](
            *(rows.view, *rows.view.stride()[:2], source.view, *source.view.stride()[:2]),
            *(self.taps, *self.valid, result, *result.stride()[:2], *result.shape[1:], scale),
            *(2 if self.fixed else len(self.taps), self.fixed, backwards, use, self.levels, level),
            *(rows.of_x, source.of_x, ROWS, CHANNELS),
        )


def _parts(batch: int, count: int) -> int:
    return min(batch * triton.cdiv(count, ROWS), PARTS)


# The kernels: one step on a block of rows and channels. Indices run around the period of the sample.


@triton.jit
def _near(
    source, source_row, tap, k, channel, period, valid, width, TAPS: tl.constexpr, BACKWARDS: tl.constexpr
):  # fmt: skip
    """The rows of a sample that a tap is multiplied with, zeros where there are none."""
    around = tl.maximum(period, 1)
    # A multiple of the period keeps the row from being negative.
    row = (k + (TAPS * around - tap if BACKWARDS else tap)) % around
    there = ((k < period) & (row < valid))[:, None] & (channel < width)
    return tl.load(source + row[:, None] * source_row + channel, there, 0)


@triton.jit
def _sum(
    source, source_row, taps, k, channel, period, valid, width, TAPS: tl.constexpr, FIXED: tl.constexpr,
    BACKWARDS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """sum over l of taps[l] source[k +- l] for rows of a sample, without taps the sum of two rows."""
    total = tl.zeros((ROWS, CHANNELS), taps.dtype.element_ty)
    for tap in range(TAPS):
        value = _near(source, source_row, tap, k, channel, period, valid, width, TAPS, BACKWARDS).to(total.dtype)
        if FIXED:
            total += value
        else:
            total += value * tl.load(taps + tap * width + channel, channel < width, 0)
    return total


@triton.jit
def _apply(
    rows, rows_sample, rows_row, source, source_sample, source_row, taps, lengths, positions, result, result_sample,
    result_row, count, width, scale, TAPS: tl.constexpr, FIXED: tl.constexpr, BACKWARDS: tl.constexpr,
    USE: tl.constexpr, LEVELS: tl.constexpr, LEVEL: tl.constexpr, ROWS_OF_X: tl.constexpr,
    SOURCE_OF_X: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A block of a step's result; rows at and past the sample's period are zero."""
    k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid_rows = extent(lengths, positions, sample, LEVELS, LEVEL, ROWS_OF_X)
    period, valid_source = extent(lengths, positions, sample, LEVELS, LEVEL, SOURCE_OF_X)
    total = _sum(
        source + sample * source_sample, source_row, taps, k, channel, period, valid_source, width, TAPS, FIXED,
        BACKWARDS, ROWS, CHANNELS,
    )  # fmt: skip
    if USE == "silu":
        total /= 1 + tl.exp(-total)
    there = (k < valid_rows)[:, None] & (channel < width)
    value = tl.load(rows + sample * rows_sample + k[:, None] * rows_row + channel, there, 0).to(total.dtype)
    value = tl.where((k < period)[:, None], value + scale * total, 0)
    place = result + sample * result_sample + k[:, None] * result_row + channel
    tl.store(place, value, (k < count)[:, None] & (channel < width))


@triton.jit
def _differentiate(
    gradient, gradient_sample, gradient_row, source, source_sample, source_row, taps, of_sum, parts, lengths,
    positions, made, made_sample, made_row, undone, undone_sample, undone_row, passed, passed_taps, passed_result,
    passed_sample, passed_row, batch, count, width, blocks, scale, TAPS: tl.constexpr, PASSED_TAPS: tl.constexpr,
    BACKWARDS: tl.constexpr, UNDOES: tl.constexpr, PASSES: tl.constexpr, LEVELS: tl.constexpr, LEVEL: tl.constexpr,
    OF_X: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One part, so many blocks of rows: gradients of their sums, and of the taps from all of them."""
    part = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    of_sample = tl.cdiv(count, ROWS)
    slot = tl.arange(0, SLOTS)[:, None]
    of_taps = tl.zeros((SLOTS, CHANNELS), taps.dtype.element_ty)
    for number in range(part * blocks, tl.minimum((part + 1) * blocks, batch * of_sample)):
        sample = (number // of_sample).to(tl.int64)
        k = number % of_sample * ROWS + tl.arange(0, ROWS)
        period, valid = extent(lengths, positions, sample, LEVELS, LEVEL, OF_X)
        exists, inside = (k < period)[:, None], (k < count)[:, None] & (channel < width)
        near = source + sample * source_sample
        total = _sum(
            near, source_row, taps, k, channel, period, period, width, TAPS, False, BACKWARDS, ROWS, CHANNELS
        )  # fmt: skip
        share = 1 / (1 + tl.exp(-total))
        if UNDOES:
            place = made + sample * made_sample + k[:, None] * made_row + channel
            value = tl.load(place, exists & (channel < width), 0).to(total.dtype) - scale * total * share
            place = undone + sample * undone_sample + k[:, None] * undone_row + channel
            tl.store(place, tl.where(exists, value, 0), inside)
        place = gradient + sample * gradient_sample + k[:, None] * gradient_row + channel
        of_result = tl.load(place, (k < valid)[:, None] & (channel < width), 0).to(total.dtype)
        if PASSES:
            of_result += _sum(
                passed + sample * count * width, width, passed_taps, k, channel, period, period, width, PASSED_TAPS,
                False, BACKWARDS, ROWS, CHANNELS,
            )  # fmt: skip
            place = passed_result + sample * passed_sample + k[:, None] * passed_row + channel
            tl.store(place, tl.where(exists, of_result, 0), inside)
        of_total = tl.where(exists, of_result * scale * (share * (1 + total * (1 - share))), 0)
        tl.store(of_sum + (sample * count + k[:, None]) * width + channel, of_total, inside)
        for tap in range(TAPS):
            value = _near(near, source_row, tap, k, channel, period, period, width, TAPS, BACKWARDS).to(total.dtype)
            of_taps += tl.where(slot == tap, tl.sum(of_total * value, 0)[None, :], 0)
    place = parts + (part * TAPS + slot) * width + channel
    tl.store(place, of_taps, (slot < TAPS) & (channel < width))
