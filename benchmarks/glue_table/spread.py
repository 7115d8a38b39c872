"""What repeated runs say: the mean, the spread by pre-training seed and by fine-tuning seed apart, and differences."""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """The mean of a score over seeds, and its parts.

    Scores of the seeds s of pre-training (or draws of a control) and f of fine-tuning are taken as
    y = mean + a_s + e_sf, with independent a and e (a nested random-effects model; the estimator is that of the
    analysis of variance, by moments).

    Attributes:
        tuning: standard deviation of e: the root of the mean over s of the variance over f; None with one seed.
        pretraining: standard deviation of a: the root of the variance of the means over f less tuning^2 / F, or 0
            where that is negative; None with one seed s.
        error: standard error of the mean, the root of pretraining^2 / S + tuning^2 / (S F); None where both are None.
            With one seed s it knows nothing of a.
        seeds: (S, F).
    """

    mean: float
    pretraining: float | None
    tuning: float | None
    error: float | None
    seeds: tuple[int, int]


def score(values: list[list[float]]) -> Score:
    """Of S lists of F values each."""
    pretrained, tuned = len(values), len(values[0])
    means = [statistics.fmean(row) for row in values]
    within = statistics.fmean(statistics.variance(row) for row in values) if tuned > 1 else None
    between = None
    if pretrained > 1:
        between = max(0.0, statistics.variance(means) - (within or 0.0) / tuned)
    error = None
    if within is not None or between is not None:
        error = math.sqrt((between or 0.0) / pretrained + (within or 0.0) / (pretrained * tuned))
    roots = [None if part is None else math.sqrt(part) for part in (between, within)]
    return Score(statistics.fmean(means), *roots, error, (pretrained, tuned))


@dataclass(frozen=True)
class Difference:
    """Of pre-training from a control; `error` is its standard error."""

    value: float
    error: float | None

    @property
    def is_above(self) -> bool:
        """By more than two standard errors."""
        return self.error is not None and self.value > 2 * self.error


def difference(first: Score, second: Score) -> Difference:
    """With independent errors: the seeds are equal numbers, but no run of one shares weights with one of the other."""
    errors = [one.error for one in (first, second)]
    known = all(error is not None for error in errors)
    return Difference(first.mean - second.mean, math.hypot(*errors) if known else None)


def crossing(curve: list[list[float]], column: int, level: float) -> float | None:
    """Tokens after which a curve of [tokens, masked accuracy, loss] first passes a level, between two evaluations by
    a straight line; None where it never does.

    Args:
        column: 1, accuracy, passes it upwards; 2, loss, downwards.
    """
    sign = 1 if column == 1 else -1
    beyond = [sign * (point[column] - level) for point in curve]
    for number, value in enumerate(beyond):
        if value > 0:
            if number == 0:
                return float(curve[0][0])
            before, after = curve[number - 1][0], curve[number][0]
            share = -beyond[number - 1] / (value - beyond[number - 1])
            return before + share * (after - before)
    return None
