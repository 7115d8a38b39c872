"""Periodised lifting in Triton, one launch for each level, forward, back and in the derivative (programs_gpu.py).

Rows and bands are in the dtype of the arguments, what is between two levels in that of the taps. The derivative takes
its rows from the bands, for each level can be undone: that of analysis does so on its way from the last level back.
"""

from typing import NamedTuple

import torch
import triton

from ..bands.gpu import OF_FLOAT64, REGISTERS, valid_of
from ..bands.layout import bands_of, keep_rows, period_of
from ..common.grids import checked
from ..common.interpreter import interpreted
from .programs_gpu import lift, unlift

# Rows and channels of a block. A strip has at most LONGEST rows, and a launch at least PROGRAMS programs, two for each
# multiprocessor of the largest of our cards, where there are so many blocks.
ROWS, CHANNELS, LONGEST, PROGRAMS = (16, 16, 32, 6) if interpreted() else (32, 32, 512, 264)


def lifting_analysis(x, predict, update, levels, lengths):
    """Bands (B N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = x.new_empty(batch * period_of(positions, levels), width)
    steps = _Levels(x, predict, update, levels, batch, positions, lengths)
    rows = x
    for level in range(1, levels + 1):
        even, odd = _halves(rows, level)
        detail = steps.detail(bands, level)
        rows = steps.low(bands) if level == levels else steps.between(x, detail.shape[1])
        steps.lift(level, steps.predict.of(-1), (odd, even, detail), steps.update.of(1), (even, rows))
    return bands


def lifting_synthesis(bands, predict, update, levels, batch, length, lengths):
    """Rows (B, N, D) from bands (B N', D)."""
    steps = _Levels(bands, predict, update, levels, batch, length, lengths)
    rows = steps.low(bands)
    for level in range(levels, 0, -1):
        low = rows
        rows = steps.above(bands, level)
        steps.undo(level, low, steps.detail(bands, level), rows)
    return keep_rows(rows[:, :length], lengths).contiguous()


def lifting_analysis_backward(gradient, bands, predict, update, levels, batch, length, lengths):
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    steps = _Levels(gradient, predict, update, levels, batch, length, lengths)
    of_low = steps.low(gradient)
    low = None if bands is None else steps.low(bands)
    for level in range(levels, 0, -1):
        of_rows = steps.above(gradient, level)
        of_even, of_odd = of_rows[:, ::2], of_rows[:, 1::2]
        gradients = Rows(of_low), Rows(steps.detail(gradient, level))
        if bands is None:
            given = gradients[1], gradients[0], of_odd
            steps.lift(level, steps.update.transposed(1), given, steps.predict.transposed(-1), (gradients[0], of_even))
        else:
            rows, detail = steps.between(gradient, of_rows.shape[1]), steps.detail(bands, level)
            even, odd = rows[:, ::2], None if level == 1 else rows[:, 1::2]
            undone = Undone(low, odd)
            both = steps.update.of(1), steps.predict.of(-1)
            steps.unlift(level, both, gradients, (detail, even), undone, (of_odd, of_even))
            low = rows
        of_low = of_rows
    return keep_rows(of_low[:, :length], lengths).contiguous(), *steps.of_taps()


def lifting_synthesis_backward(gradient, bands, predict, update, levels, lengths):
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    steps = _Levels(gradient, predict, update, levels, batch, length, lengths)
    evens = None if bands is None else steps.evens(bands)
    of_bands = gradient.new_empty(batch * period_of(length, levels), width)
    of_rows = gradient
    for level in range(1, levels + 1):
        of_even, of_odd = _halves(of_rows, level)
        of_detail = steps.detail(of_bands, level)
        of_low = steps.low(of_bands) if level == levels else steps.between(gradient, of_detail.shape[1])
        if bands is None:
            given = of_even, of_odd, of_low
            steps.lift(level, steps.predict.transposed(1), given, steps.update.transposed(-1), (of_odd, of_detail))
        else:
            sources, both = (evens[level], steps.detail(bands, level)), (steps.predict.of(1), steps.update.of(-1))
            steps.unlift(level, both, (of_odd, of_even), sources, None, (of_low, of_detail))
        of_rows = of_low
    return of_bands, *steps.of_taps()


# A level is a prediction and an update, alike in both directions of the transform and in their derivatives.


class Rows(NamedTuple):
    """Rows (B, .., D) of a level, and what they are of (bands/gpu.py)."""

    view: torch.Tensor
    of_x: str = "none"


class Undone(NamedTuple):
    """What a level has made, and where the odd rows that it was made from shall be; None: nowhere."""

    low: torch.Tensor
    odd: torch.Tensor | None


class Step(NamedTuple):
    """rows + scale * silu(sum over l of taps[l] source[k +- l]); without taps, scale times the sum of two rows."""

    taps: torch.Tensor
    scale: float
    fixed: bool
    backwards: bool

    def of(self, sign: int) -> "Step":
        """The step, or what undoes it."""
        return self._replace(scale=sign * self.scale)

    def transposed(self, sign: int) -> "Step":
        """The transposed sum of a fixed step."""
        return self.of(sign)._replace(backwards=not self.backwards)

    @property
    def reach(self) -> int:
        """Rows of a sum."""
        return 2 if self.fixed else len(self.taps)


def _halves(rows: torch.Tensor, level: int) -> tuple[Rows, Rows]:
    """Even and odd rows of what a level is made from, at level 1 x."""
    return Rows(rows[:, ::2], "even" if level == 1 else "none"), Rows(rows[:, 1::2], "odd" if level == 1 else "none")


class _Levels:
    """The launches. Details use rows from k on; approximations use details up to k."""

    def __init__(self, rows, predict, update, levels, batch, length, lengths):
        self.levels, self.batch, self.length = levels, batch, length
        self.valid = valid_of(lengths, length)
        fixed, dtype = predict is None, torch.promote_types(rows.dtype, torch.float32)
        # What is not there is not touched: any tensor stands for it.
        predict, update = (rows.new_empty(0, dtype=dtype) if fixed else taps for taps in (predict, update))
        self.predict, self.update = Step(predict, 0.5, fixed, False), Step(update, 0.25, fixed, True)
        # Of the gradients of each step's taps, a part for each strip of each level, and how many are made.
        self.parts: dict[bool, torch.Tensor] = {}
        self.made = 0

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
        even, given = rows[:, ::2], (Rows(low), Rows(detail))
        self.lift(level, self.update.of(-1), (*given, even), self.predict.of(1), (Rows(detail), rows[:, 1::2]))

    def evens(self, bands: torch.Tensor) -> dict[int, torch.Tensor]:
        """The even rows of each level."""
        found, low = {}, self.low(bands)
        for level in range(self.levels, 1, -1):
            rows = self.between(bands, 2 * low.shape[1])
            self.undo(level, low, self.detail(bands, level), rows)
            found[level], low = rows[:, ::2], rows
        found[1] = self.between(bands, low.shape[1])
        self.lift(1, self.update.of(-1), (Rows(low), Rows(self.detail(bands, 1)), found[1]))
        return found

    def lift(
        self,
        level: int,
        first: Step,
        of_first: tuple[Rows, Rows, torch.Tensor],
        other: Step | None = None,
        of_other: tuple[Rows, torch.Tensor] | None = None,
    ) -> None:
        """A step's rows, what it adds up and what it makes; then another's rows, which adds up what the first made, and
        what it makes.
        """
        rows, source, made = of_first
        others, result = of_other or (rows, made)
        grid, strip = self._strips(*made.shape[1:])
        lift[grid](
            *(rows.view, *rows.view.stride()[:2], source.view, *source.view.stride()[:2], first.taps),
            *(made, *made.stride()[:2], others.view, *others.view.stride()[:2], (other or first).taps),
            *(result, *result.stride()[:2], *self.valid, *made.shape[1:], strip),
            *(first.scale, (other or first).scale, first.reach, (other or first).reach, first.fixed, first.backwards),
            *(other is not None, self.levels, level, rows.of_x, source.of_x, others.of_x, ROWS, CHANNELS),
        )

    def unlift(
        self,
        level: int,
        steps: tuple[Step, Step],
        gradients: tuple[Rows, Rows],
        sources: tuple[torch.Tensor, torch.Tensor],
        undone: Undone | None,
        results: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """The derivative of learned steps, the one that came last first; keeps its part of the gradient of the taps.

        Args:
            gradients: of what the two steps have made, in the order of the steps, as are `sources`.
            undone: with this the second source is written, and not read alone.
            results: gradients of what the two steps have added to, the other one's first.
        """
        first, other = steps
        gradient, others = gradients
        passed, result = results
        batch, count, width = sources[0].shape
        grid, strip = self._strips(count, width)
        if not self.parts:
            counts = [period_of(self.length, self.levels) >> each for each in range(1, self.levels + 1)]
            strips = batch * sum(self._strips(each, width)[0][0] for each in counts)
            self.parts = {step.backwards: step.taps.new_empty(strips, *step.taps.shape) for step in steps}
        parts = [self.parts[step.backwards][self.made :] for step in steps]
        self.made += batch * grid[0]
        sums = [first.taps.new_empty(batch, count, width) for _ in steps]
        undoes = "none" if undone is None else "one" if undone.odd is None else "both"
        low = sources[0] if undone is None else undone.low
        odd = undone.odd if undoes == "both" else low
        views = gradient.view, others.view, *sources
        unlift[grid](
            *(argument for view in views for argument in (view, *view.stride()[:2])),
            *(first.taps, other.taps, low, *low.stride()[:2], odd, *odd.stride()[:2], *sums),
            *(passed, *passed.stride()[:2], result, *result.stride()[:2], *parts, *self.valid, count, width, strip),
            *(first.scale, other.scale, first.reach, other.reach, first.backwards, undoes, self.levels, level),
            *(gradient.of_x, others.of_x, *(triton.next_power_of_2(step.reach) for step in steps), ROWS, CHANNELS),
            maxnreg=OF_FLOAT64 if first.taps.dtype == torch.float64 else REGISTERS,
        )

    def of_taps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the taps of prediction and update."""
        if self.predict.fixed:
            return self.predict.taps, self.update.taps
        return tuple(self.parts[step.backwards].sum(0) for step in (self.predict, self.update))

    def _strips(self, count: int, width: int) -> tuple[tuple[int, ...], int]:
        """Programs for strips, channels and samples of so many rows, and rows of a strip: whole blocks."""
        blocks, strip = triton.cdiv(width, CHANNELS), LONGEST
        while strip > ROWS and (strip >= 2 * count or self.batch * blocks * triton.cdiv(count, strip) < PROGRAMS):
            strip //= 2
        return checked(triton.cdiv(count, strip), blocks, self.batch), strip
