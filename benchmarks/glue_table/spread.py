"""What repeated runs say: the mean, the spread by pre-training seed and by fine-tuning seed apart, and differences."""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """The mean of a score over seeds, and its parts.

    Scores of the seeds s of pre-training (or draws of a control) and f of fine-tuning, which are the same numbers for
    every s, are taken as y = mean + a_s + b_f + e_sf, with independent a, b and e (a crossed random-effects model; the
    estimator is that of the two-way analysis of variance, by moments: a part below 0 counts as 0).

    Attributes:
        tuning: standard deviation over seeds of fine-tuning, the root of Var b + Var e; None with one seed.
        pretraining: standard deviation of a; None with one seed s.
        error: standard error of the mean, the root of Var a / S + Var b / F + Var e / (S F); None where both are None.
            With one seed s it knows nothing of a, with one seed f nothing of b.
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
    mean = statistics.fmean(map(statistics.fmean, values))
    of_rows, of_columns = (
        statistics.variance(map(statistics.fmean, lists)) if len(lists) > 1 else None
        for lists in (values, list(zip(*values, strict=True)))
    )
    between, common, rest = of_rows, of_columns, 0.0
    if of_rows is not None and of_columns is not None:
        everything = sum((value - mean) ** 2 for row in values for value in row)
        explained = (pretrained - 1) * tuned * of_rows + (tuned - 1) * pretrained * of_columns
        rest = max(0.0, everything - explained) / ((pretrained - 1) * (tuned - 1))
        between, common = max(0.0, of_rows - rest / tuned), max(0.0, of_columns - rest / pretrained)
    error = None
    if between is not None or common is not None:
        error = math.sqrt((between or 0.0) / pretrained + (common or 0.0) / tuned + rest / (pretrained * tuned))
    parts = (between, None if common is None else common + rest)
    roots = [None if part is None else math.sqrt(part) for part in parts]
    return Score(mean, *roots, error, (pretrained, tuned))


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
