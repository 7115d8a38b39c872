"""Spikes: a step whose loss or gradient norm stands out from those before it is dropped, by every rank alike.

The loss is known on all ranks before the step is made, the norm is the one that the engine has computed for clipping:
no rank waits for anything that it would not have waited for anyway.
"""

import math

from ..checkpoints.state import RunState
from ..optimization.optimizer import StepGuard

# Steps that a new one is compared with, and how many of them it takes to know how much they vary.
WINDOW_STEPS = 128
FEWEST_STEPS = 32
SIGMAS = 6.0
# Where the steps hardly vary, their spread is taken for this share of their mean: 0.6 % above it is no spike.
SMALLEST_SPREAD = 1e-3
# So many spikes in a row are no outliers: the run has come to another level.
LONGEST_ROW = 10
_NAMES = ("loss", "gradient norm")


def highest(values: list[float]) -> float:
    """The limit of values like these: their mean plus SIGMAS times their standard deviation."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean + SIGMAS * max(math.sqrt(variance), SMALLEST_SPREAD * abs(mean))


class SpikeGuard:
    """Judges the steps of a run. Those that it compares with are part of the run's state, so that a resume is exact.

    For each step: `expect`, then the engine's step, which asks `is_spike`, then `note_taken` or `note_dropped` unless
    it was not finite.

    Args:
        state: of the run; `recent` and `row_of_spikes` are kept here.
        guard: of the engine, which is told to ask.
        skips: `optim.skip_spikes`; without it no step is a spike, and nothing is kept.
    """

    def __init__(self, state: RunState, guard: StepGuard, skips: bool):
        self._state, self._skips = state, skips
        if skips:
            guard.judge = self.is_spike

    def expect(self, loss: float) -> None:
        """The next step has this mean loss over the global batch."""
        recent = self._state.recent
        self._step = [loss, math.nan]
        self._limits = None
        if len(recent) >= FEWEST_STEPS:
            self._limits = [highest(list(values)) for values in zip(*recent, strict=True)]

    def is_spike(self, norm: float) -> bool:
        """Whether the expected step stands out, by its loss or by this gradient norm."""
        self._step[1] = norm
        return self._reason() is not None

    def _reason(self) -> str | None:
        if self._limits is None:
            return None
        reasons = (
            f"{name} {value:.6g} is beyond {limit:.6g}"
            for name, value, limit in zip(_NAMES, self._step, self._limits, strict=True)
            if value > limit
        )
        return next(reasons, None)

    def note_taken(self) -> None:
        """The expected step was taken."""
        self._state.row_of_spikes = 0
        if self._skips and all(map(math.isfinite, self._step)):  # a batch without items has no loss
            self._state.recent.append(self._step)
            del self._state.recent[:-WINDOW_STEPS]

    def note_dropped(self) -> str:
        """The expected step was dropped for a spike; the message about it."""
        state = self._state
        state.row_of_spikes += 1
        told = (
            f"step {state.step}: spike, step dropped ({state.skipped} so far): {self._reason()}, {SIGMAS:g} standard "
            f"deviations above the mean of the last {len(state.recent)} steps"
        )
        if state.row_of_spikes < LONGEST_ROW:
            return told
        row, state.row_of_spikes = state.row_of_spikes, 0
        state.recent.clear()
        return f"{told}; {row} in a row are no outliers: the next {FEWEST_STEPS} steps are taken as they come"
