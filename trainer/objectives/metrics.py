"""GLUE's metrics, the score of the best constant answer, and 95 % intervals.

Point values come from scikit-learn and SciPy. Nothing here returns NaN: the correlation with a constant, which is
undefined, counts as 0.0 and is noted; F1 without a positive among predictions and labels is 0.0; an undefined area
under the ROC curve is 0.5. Only the error of predictions that are not finite is infinite.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

# F1 is that of class 1, of two; macro F1 the mean over the classes that are there, as labels or as predictions.
_OF_CLASSES = ("matthews", "accuracy", "macro_f1", "f1")
CORRELATIONS = ("pearson", "spearman")
# Root mean square and mean size of what predictions and labels differ by, in their unit; the lower the better.
ERRORS = ("rmse", "mae")

INTERVAL_SEED = 0
CONFIDENCE = 0.95
_MOST_DRAWN = 4_000_000  # examples of all draws at a time: some hundred MB


@dataclass(frozen=True)
class Scores:
    """Metrics of one set of predictions; `score` is the mean of those that it is of, as GLUE averages them. `notes`
    says what was not ordinary.
    """

    values: dict[str, float]
    score: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassScores:
    """Of one class: how many samples have it, for how many it is predicted, and what follows; None: of nothing."""

    labelled: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


def of_each_class(labels: Sequence[int], predictions: Sequence[int], count: int) -> list[ClassScores]:
    """The scores of each of `count` classes, one against all others."""
    predicted = np.bincount(np.asarray(predictions), minlength=count).tolist()
    precision, recall, f1, labelled = sklearn_metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(count), zero_division=np.nan
    )
    shares = np.stack([precision, recall, f1], axis=1).tolist()
    return [
        ClassScores(int(has), given, *(None if math.isnan(share) else share for share in of_one))
        for has, given, of_one in zip(labelled, predicted, shares, strict=True)
    ]


def of_classes(count: int) -> tuple[str, ...]:
    """The metrics of so many classes."""
    return _OF_CLASSES if count == 2 else _OF_CLASSES[:-1]


# Point values of one set of predictions, by scikit-learn and SciPy.


def evaluate(names: Sequence[str], labels: np.ndarray, predictions: np.ndarray, further: Sequence[str] = ()) -> Scores:
    """Metrics `names` of `predictions` (n,) against `labels` (n,), and `further` ones beside the score; both are class
    indices, or values for correlations and errors.

    Raises ValueError for an unknown metric, for lengths that differ and for an empty set.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"labels {labels.shape} and predictions {predictions.shape} must be vectors of one length, at least 1"
        )
    notes: list[str] = []
    values = {name: _metric(name, labels, predictions, notes) for name in (*names, *further)}
    return Scores(values, float(np.mean([values[name] for name in names])), tuple(notes))


def _metric(name: str, labels: np.ndarray, predictions: np.ndarray, notes: list[str]) -> float:
    if name == "accuracy":
        return float(sklearn_metrics.accuracy_score(labels, predictions))
    if name == "f1":
        return float(sklearn_metrics.f1_score(labels, predictions, pos_label=1, average="binary", zero_division=0.0))
    if name == "macro_f1":
        return float(sklearn_metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))
    if name == "matthews":
        if np.ptp(predictions) == 0:
            notes.append("matthews: all predictions are equal, counted as 0.0")
        with warnings.catch_warnings():  # a single class present is what the line above tells
            warnings.simplefilter("ignore", UserWarning)
            return float(sklearn_metrics.matthews_corrcoef(labels, predictions))
    if name in ERRORS:
        errors = predictions.astype(np.float64) - labels
        return _error(name, errors) if np.isfinite(errors).all() else math.inf
    if name in CORRELATIONS:
        labels, predictions = _in_one_unit(labels, predictions)
        if not np.isfinite(predictions).all():
            notes.append(f"{name}: {int((~np.isfinite(predictions)).sum())} predictions are not finite, counted as 0.0")
            return 0.0
        if labels.size < 2 or _constant(labels) or _constant(predictions):
            notes.append(f"{name}: undefined for constant values, counted as 0.0")
            return 0.0
        compute = stats.pearsonr if name == "pearson" else stats.spearmanr
        return float(compute(labels, predictions).statistic)
    raise ValueError(f"unknown metric {name!r}; known: {', '.join((*_OF_CLASSES, *CORRELATIONS, *ERRORS))}")


def _error(name: str, errors: np.ndarray) -> np.ndarray:
    """RMSE or MAE over the last axis."""
    return np.sqrt((errors**2).mean(axis=-1)) if name == "rmse" else np.abs(errors).mean(axis=-1)


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve of `scores` (n,) for class 1 among `labels` (n,) of 0 and 1.

    It is the share of pairs of both classes in which class 1 has the higher score, ties counting half: unlike accuracy
    it is 0.5 for any constant answer, however rare a class is. 0.5, too, where one class is missing, or a score is not
    finite.
    """
    if len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return 0.5
    return float(sklearn_metrics.roc_auc_score(labels, scores))


def _in_one_unit(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in float64, standardised by the labels: what counts as rounding does not depend on their unit."""
    labels, predictions = labels.astype(np.float64), predictions.astype(np.float64)
    if np.ptp(labels) == 0:
        return labels, predictions
    mean, deviation = labels.mean(), labels.std()
    return (labels - mean) / deviation, (predictions - mean) / deviation


def _constant(values: np.ndarray) -> bool:
    # Beyond rounding: a network that answers one value for every input differs in the last bits.
    return bool(np.ptp(values) <= 1e-7 * max(1.0, float(np.abs(values).max())))


def baseline(names: Sequence[str], labels: np.ndarray, further: Sequence[str] = ()) -> Scores:
    """The best that one constant answer reaches on `labels` (n,): of each metric by itself, while `score` is the mean
    over `names` of a single answer, the best one. 0 for correlations.
    """
    labels = np.asarray(labels)
    if set(names) <= {*CORRELATIONS, *ERRORS}:
        best = {"rmse": labels.mean(), "mae": np.median(labels)}
        values = {name: float(_error(name, labels - best[name])) for name in (*names, *further) if name in best}
        values |= {name: 0.0 for name in (*names, *further) if name in CORRELATIONS}
        return Scores(values, float(np.mean([values[name] for name in names])))
    # No other class does better: F1 is that of class 1, however rare it is.
    answers = {int(np.bincount(labels).argmax()), *((1,) if "f1" in names else ())}
    found = [evaluate(names, labels, np.full_like(labels, answer), further) for answer in answers]
    values = {name: max(scores.values[name] for scores in found) for name in found[0].values}
    return Scores(values, max(scores.score for scores in found))


# Intervals by bootstrap. Thousands of draws through scikit-learn would take minutes: here all draws are counted, or
# correlated as rows of an array, at once.


def intervals(
    names: Sequence[str], labels: np.ndarray, predictions: np.ndarray, draws: int = 2000, further: Sequence[str] = ()
) -> dict[str, tuple[float, float]]:
    """95 % percentile bootstrap intervals of the mean over runs, of each metric and of "score" (see `evaluate`).

    `labels` is (n,), `predictions` (runs, n): one row per seed. Each draw takes n examples and as many runs as there
    are, both with replacement, the same examples for every run: the interval covers the choice of dev examples and,
    with several seeds, of seeds. Macro F1 of draws is biased by the classes that they lack: its interval has their
    spread, around the value itself. The generator has a fixed seed, so a table can be redrawn.
    """
    labels, predictions = np.asarray(labels), np.atleast_2d(np.asarray(predictions))
    generator = np.random.default_rng(INTERVAL_SEED)
    draw = _draw_values if set(names) <= {*CORRELATIONS, *ERRORS} else _draw_classification
    per_run = draw((*names, *further), labels, predictions, draws, generator)
    runs = predictions.shape[0]
    chosen = generator.multinomial(runs, np.full(runs, 1.0 / runs), size=draws) / runs  # (draws, runs)
    samples = {name: (per_run[name] * chosen).sum(axis=1) for name in per_run}
    samples["score"] = np.mean([samples[name] for name in names], axis=0)
    edges = 100 * np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return {name: tuple(float(edge) for edge in np.percentile(values, edges)) for name, values in samples.items()}


def _draw_classification(names, labels, predictions, draws, generator) -> dict[str, np.ndarray]:
    """(draws, runs) of each metric. Drawing examples is drawing counts of the distinct (label, prediction of each
    run) patterns.
    """
    patterns, counts = np.unique(np.vstack([labels, predictions]), axis=1, return_counts=True)
    drawn = generator.multinomial(labels.size, counts / labels.size, size=draws).astype(np.float64)
    found = {
        name: np.stack([_of_counts(name, drawn, patterns[0], run) for run in patterns[1:]], axis=1) for name in names
    }
    if "macro_f1" in found:
        # Draws lack rare classes, which are hard, and so lie above what they are draws of: their spread is taken, and
        # their middle put where that is.
        whole = counts[None].astype(np.float64)
        values = np.stack([_of_counts("macro_f1", whole, patterns[0], run) for run in patterns[1:]], axis=1)
        draws_of_it = found["macro_f1"]
        found["macro_f1"] = np.clip(draws_of_it + values - np.median(draws_of_it, axis=0), 0, 1)
    return found


def _of_counts(name: str, counts: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """A metric (draws,) of examples of which `counts` (draws, n) has how often each is there; equal to scikit-learn's.

    The counts of labels and of predictions suffice: whole confusion matrices of many classes would not fit into memory.
    """
    total = counts.sum(axis=1)
    correct = counts @ (labels == predictions).astype(np.float64)
    if name == "accuracy":
        return correct / total
    classes = np.arange(max(2, labels.max() + 1, predictions.max() + 1))
    true, predicted = (counts @ (found[:, None] == classes).astype(np.float64) for found in (labels, predictions))
    if name == "macro_f1":
        are_hits = ((labels == predictions)[:, None] & (labels[:, None] == classes)).astype(np.float64)
        of_class = _ratio(2 * (counts @ are_hits), true + predicted)
        return of_class.sum(axis=1) / (true + predicted > 0).sum(axis=1)
    if name == "f1":
        hits = counts @ ((labels == 1) & (predictions == 1)).astype(np.float64)
        return _ratio(2 * hits, true[:, 1] + predicted[:, 1])
    if name != "matthews":
        raise ValueError(f"{name!r} is no classification metric; known: {', '.join(_OF_CLASSES)}")
    covariance = correct * total - (true * predicted).sum(axis=1)
    variance = (total**2 - (predicted**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1))
    return _ratio(covariance, np.sqrt(variance))


def _draw_values(names, labels, predictions, draws, generator) -> dict[str, np.ndarray]:
    """(draws, runs) of each correlation or error."""
    errors = predictions.astype(np.float64) - labels
    labels, predictions = _in_one_unit(labels, predictions)
    finite = np.isfinite(predictions).all(axis=1)
    result = {name: np.zeros((draws, len(predictions))) for name in names}
    # Draws at a time; the generator gives the same ones whatever their number.
    block = max(1, min(250, _MOST_DRAWN // labels.size))
    for start in range(0, draws, block):
        chosen = generator.integers(0, labels.size, size=(min(block, draws - start), labels.size))
        rows = slice(start, start + len(chosen))
        for run in np.flatnonzero(finite):
            for name in (name for name in names if name in ERRORS):
                result[name][rows, run] = _error(name, errors[run][chosen])
            if _constant(predictions[run]):
                continue
            for name in (name for name in names if name in CORRELATIONS):
                pair = labels[chosen], predictions[run][chosen]
                if name == "spearman":
                    pair = stats.rankdata(pair[0], axis=1), stats.rankdata(pair[1], axis=1)
                left, right = (values - values.mean(axis=1, keepdims=True) for values in pair)
                spread = np.sqrt((left**2).sum(axis=1) * (right**2).sum(axis=1))
                result[name][rows, run] = _ratio((left * right).sum(axis=1), spread)
    return result


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator, dtype=np.float64), where=denominator > 0)
