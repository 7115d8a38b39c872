"""Figures over seeds, and how they are written."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

ABSENT = "–"


@dataclass(frozen=True)
class Figure:
    """One metric: a value for each seed, and what they say together.

    Attributes:
        spread: standard deviation over the seeds; None with one seed, or where a value is not finite.
        interval: 95 % interval of the mean; None where there is none.
        baseline: what the best constant answer reaches; None where that means nothing or is unknown.
    """

    values: list[float]
    mean: float
    spread: float | None
    interval: tuple[float, float] | None
    baseline: float | None = None

    @property
    def verdict(self) -> str | None:
        """The place of the interval: "above" or "below" the baseline, or "contains" it; None without one of the two."""
        if self.interval is None or self.baseline is None:
            return None
        low, high = self.interval
        return "above" if low > self.baseline else "below" if high < self.baseline else "contains"


def over_seeds(
    values: list[float], interval: tuple[float, float] | None = None, baseline: float | None = None
) -> Figure:
    """The figure of a metric that has a value for each seed."""
    spread = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
    return Figure(values, statistics.fmean(values), spread, interval, baseline)


def percent(value: float, digits: int = 1) -> str:
    """A share, or another figure that is shown times 100."""
    return f"{100 * value:.{digits}f}"


def duration(seconds: float) -> str:
    """`1:05:09`: hours, minutes and seconds."""
    return f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02d}:{int(seconds) % 60:02d}"


def interval(bounds: tuple[float, float] | None, write: Callable[[float], str] = percent) -> str:
    """An interval whose bounds `write` puts into words."""
    return ABSENT if bounds is None else " to ".join(map(write, bounds))
