"""Metrics: their unit on paper, their direction and their bounds follow from their names, so that a new objective needs
no entry here.
"""

import math
import re
import statistics

from scipy.special import stdtrit

from ..objectives.metrics import CONFIDENCE
from ..settings.forecast_figures import variable_of

# Metrics that are shown in percent; all others are as they come.
_PERCENT = re.compile(r"accuracy|(^|_)f1$|roc_auc")
_CORRELATION = re.compile(r"matthews|pearson|spearman")
_PERPLEXITY = re.compile(r"(^|_)perplexity$")
_NEVER_NEGATIVE = re.compile(r"(^|_)(loss|mse|rmse|mae)$")
# A little below the perplexity that runs note for losses beyond 700, which no float holds.
_DIVERGED = math.exp(699.9)
_PLACE = re.compile(r"accuracy_at_(\d+)")


def is_percent(metric: str) -> bool:
    """Tell whether a figure is shown in percent."""
    return variable_of(metric) is None and _PERCENT.search(metric) is not None


def shown(metric: str, value: float) -> float:
    """A figure, or a bound of one, in the unit that it is shown in."""
    return 100 * value if is_percent(metric) else value


def place_of(metric: str) -> int | None:
    """The place, from 1, of a metric that is the accuracy at a place of a chain: a plot shows these, no table."""
    found = _PLACE.fullmatch(metric)
    return None if found is None else int(found[1])


def is_in_table(metric: str) -> bool:
    """Tell whether a metric stands in the tables of all: those of one place or one variable are shown apart."""
    return place_of(metric) is None and variable_of(metric) is None


def is_perplexity(metric: str) -> bool:
    return _PERPLEXITY.search(metric) is not None


def has_diverged(metric: str, value: float) -> bool:
    """Tell whether a figure is no more than the largest that is noted, of a loss that may be any larger one."""
    return is_perplexity(metric) and value >= _DIVERGED


def higher_is_better(metric: str) -> bool:
    return variable_of(metric) is None and (is_percent(metric) or _CORRELATION.search(metric) is not None)


def error_of(metric: str, value: float) -> float:
    """The error that a figure leaves: 1 - accuracy (and alike) in percent, and a loss as it is."""
    if not higher_is_better(metric):
        return value
    return 100 * (1 - value) if is_percent(metric) else 1 - value


def finite(metric: str, value: float) -> float:
    """A figure, not a number where it has diverged: means of such are of nothing, and equal for unequal losses."""
    return math.nan if has_diverged(metric, value) else value


def interval_of(metric: str, values: list[float]) -> tuple[float, float] | None:
    """The CONFIDENCE interval of a mean by Student's t over the seeds; None of one, or where one is not finite.

    That of a perplexity is of the losses, its logarithms. That of a share ends at 0 and 1, that of a correlation at -1
    and 1, that of an error at 0, which no mean of them can pass.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    if is_perplexity(metric):
        if min(values) <= 0:
            return None
        low, high = _of_mean([math.log(value) for value in values])
        return math.exp(max(low, 0.0)), math.exp(high) if high < math.log(_DIVERGED) else math.inf
    return _bounded(metric, *_of_mean(values))


def _of_mean(values: list[float]) -> tuple[float, float]:
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * spread / math.sqrt(len(values))
    return mean - half, mean + half


def _bounded(metric: str, low: float, high: float) -> tuple[float, float]:
    if _NEVER_NEGATIVE.search(metric if variable_of(metric) is None else variable_of(metric)[0]):
        return max(low, 0.0), high
    if is_percent(metric):
        return max(low, 0.0), min(high, 1.0)
    if _CORRELATION.search(metric):
        return max(low, -1.0), min(high, 1.0)
    return low, high
