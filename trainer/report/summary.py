"""From runs to rows: runs that differ in nothing but their seed are one row, with mean and interval over the seeds."""

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.parquet_columns import parquet_file

from ..many_runs.read import METRICS, Run, missing_seeds
from ..models.fields import default_fields, earlier_default_fields
from ..objectives.metrics import CONFIDENCE
from ..settings.configuration import flatten
from ..settings.forecast_figures import variable_of
from ..settings.mistakes import say_loading
from ..tables.figures import Figure, over_seeds
from .budget import Budget, budget_of, conditions, letters
from .cited import Cited, citations
from .data import find_data
from .settings import Setting, settings_of, shortest

# Metrics that are shown in percent; all others are as they come.
_PERCENT = re.compile(r"accuracy|(^|_)f1$|roc_auc")
_CORRELATION = re.compile(r"matthews|pearson|spearman")
_PERPLEXITY = re.compile(r"(^|_)perplexity$")
_NEVER_NEGATIVE = re.compile(r"(^|_)(loss|mse|rmse|mae)$")
# A little below the perplexity that runs note for losses beyond 700, which no float holds.
_DIVERGED = math.exp(699.9)
_PLACE = re.compile(r"accuracy_at_(\d+)")
# Keys that may differ between the seeds of a row: they say where and when a run was made, not which run it is.
_FREE = (
    "provenance",
    "run.dir",
    "run.seed",
    "run.max_hours",
    "run.stop_at_step",
    "run.hang_minutes",
    "run.check_every",
    "run.allow_changes",
    "data.cache",
    "log",
)
# Further differences are left to the name of the run's folder.
_MOST_DIFFERENCES, _LONGEST_DIFFERENCE = 2, 40
_VALIDATION_KEY = "data.eval"
# The folder of a sweep's run: its parent has the name of the row.
_SEED_FOLDER = re.compile(r"seed-\d+")


@dataclass(frozen=True)
class Row:
    """The seeds of one configuration.

    Attributes:
        label: the model type, with what tells it from other rows of its setting.
        left_out: the number of its seeds in `Report.left_out`.
        no_chance_because: why the accuracy has no `chance` although it is a task of classes.
        validation_chance: as `chance`, of the validation samples that evaluations read, whatever split `chance` is of.
        cited: the papers' figures for this model and task.
        letter: equal for the rows of a setting that compare; "" where all of them do.
    """

    setting: Setting
    label: str
    runs: list[Run]
    figures: dict[str, Figure]
    left_out: int
    no_chance_because: str | None
    validation_chance: float | None
    cited: list[Cited]
    letter: str = ""

    @property
    def budget(self) -> Budget:
        """What its training was given."""
        return budget_of(self.runs)

    @property
    def conditions(self) -> dict[str, str]:
        """What must be equal for another row to compare."""
        return conditions(self.runs)

    @property
    def metric(self) -> str:
        """The figure that is compared."""
        return self.runs[0].metric

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def mean_of(self, name: str) -> float | None:
        """Mean of a number of the runs, e.g. "hours"; None where one lacks it."""
        values = [getattr(run, name) for run in self.runs]
        return None if None in values else statistics.fmean(values)

    def all_of(self, name: str) -> str:
        """A text of the runs, e.g. "device": each once."""
        return ", ".join(dict.fromkeys(str(getattr(run, name)) for run in self.runs if getattr(run, name) is not None))

    @property
    def chance(self) -> float | None:
        """The accuracy of always answering the most frequent class; None for tasks without classes, or where the data
        are not at hand.
        """
        return self.figures["accuracy"].baseline if "accuracy" in self.figures else None

    @property
    def reported_chances(self) -> dict[str, float]:
        """The same of the accuracies of a fine-tuning's reported splits, which have other samples: metric -> share."""
        chances = {name: self.figures[name].baseline for name in self.runs[0].reported_chances if name in self.figures}
        return {name: chance for name, chance in chances.items() if chance is not None}

    @property
    def against_chance(self) -> str | None:
        """The place of the accuracy's interval, of a fine-tuning that of the split that it reports; None without one,
        as of seeds that agree.
        """
        figure = self.figures.get(next(iter(self.reported_chances), "accuracy"))
        verdict = figure.verdict if figure is not None and figure.spread else None
        return "contains it" if verdict == "contains" else verdict


def shares_of(rows: list[Row], share: Callable[[Row], float | None]) -> list[tuple[float, str]]:
    """Each share of the most frequent class in rows of a setting once, with a mark of the letters that it belongs to
    where there are several: rows whose evaluations read other samples have others.
    """
    found: dict[float, list[str]] = {}
    for row in rows:
        value = share(row)
        if value is not None and row.letter not in found.setdefault(value, []):
            found[value].append(row.letter)
    is_marked = len(found) > 1
    return [
        (value, f" ({', '.join(filter(None, letters))})" if is_marked and any(letters) else "")
        for value, letters in found.items()
    ]


@dataclass(frozen=True)
class Report:
    """Rows by task, length and then in the order of the runs; (folder, reason) of each run that is in none of them."""

    rows: list[Row]
    left_out: list[tuple[Path, str]]

    @property
    def settings(self) -> dict[Setting, list[Row]]:
        found = defaultdict(list)
        for row in self.rows:
            found[row.setting].append(row)
        return dict(found)


# -----------------------------------------------------------------------------
# From runs to rows. A mean is of finished seeds of one configuration on one data set, and of nothing else: what is left
# out is named.


def summarize(runs: list[Run]) -> Report:
    """Group the finished runs, and name the others.

    Raises:
        UserError: a run is there twice, the seeds of a row were trained on different data, or no run is finished.
    """
    left_out = [(run.folder, run.problem) for run in runs if run.problem is not None]
    left_out += [(folder, "not started: its sweep has not come so far") for folder in missing_seeds(runs)]
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.problem is None and run.metric is None:
            left_out.append((run.folder, f"has no figures: {_why_none(run)}"))
        elif run.problem is None:
            groups[_key(run)].append(run)
    if not groups:
        reasons = "; ".join(f"{folder}: {reason}" for folder, reason in left_out)
        raise UserError(f"there is nothing to report yet: {reasons}")
    for group in groups.values():
        group.sort(key=lambda run: run.seed)
        _refuse_mixed(group)
    # A seed that has diverged counts, too: without it the others would look like all that there were.
    without = [_key(run) for run in runs if run.values and (run.problem is not None or run.metric is None)]
    planned = [folder.parent for folder, reason in left_out if reason.startswith(("not started", "failed before"))]
    settings = settings_of([group[0] for group in groups.values()])
    labels = _labels(list(groups.values()), settings)
    rows = []
    for (key, group), setting, label in zip(groups.items(), settings, labels, strict=True):
        parents = {run.folder.parent for run in group}
        missing = without.count(key) + sum(parent in parents for parent in planned)
        rows.append(_row(group, setting, label, missing))
    tasks = list(dict.fromkeys(row.setting.task for row in rows))
    rows.sort(key=lambda row: (tasks.index(row.setting.task), row.setting.length or 0, row.setting.horizon or 0))
    return Report(_lettered(rows), left_out)


def _why_none(run: Run) -> str:
    """Why a finished run has no figures."""
    if run.value(run.data_key) is None:
        return "data.eval and data.test are null"
    is_null = any(value is None for record in run.evaluations for value in record.values() if record["step"] > 0)
    return "its evaluations were not finite" if is_null else f"{METRICS} holds none that is a number"


def _lettered(rows: list[Row]) -> list[Row]:
    """The rows, with letters in each setting whose rows do not all compare."""
    found: dict[int, Row] = {}
    for setting in {row.setting for row in rows}:
        places = [index for index, row in enumerate(rows) if row.setting == setting]
        given = letters([rows[index].conditions for index in places])
        found |= {index: replace(rows[index], letter=letter) for index, letter in zip(places, given, strict=True)}
    return [found[index] for index in range(len(rows))]


# -----------------------------------------------------------------------------
# Metrics: their unit on paper and their direction follow from their names, so that a new objective needs no entry here.


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


# -----------------------------------------------------------------------------
# One row: mean and interval of each metric over the seeds.


def _row(group: list[Run], setting: Setting, label: str, missing: int) -> Row:
    first = group[0]
    names = [name for name in first.figures if all(name in run.figures for run in group)]
    names.sort(key=lambda name: name != first.metric)
    # The compared figure says already what the loss would.
    if first.metric != "loss":
        names = [name for name in names if name != "loss"]
    has_chance = "accuracy" in names and first.objective.endswith("classification")
    chance, reason = _chance(first, first.data_key) if has_chance else (None, None)
    on_validation = chance
    if has_chance and first.data_key != _VALIDATION_KEY:
        on_validation = _chance(first, _VALIDATION_KEY)[0]
    chances = {"accuracy": chance, **first.reported_chances}
    values = {name: [_finite(name, run.figures[name]) for run in group] for name in names}
    figures = {name: over_seeds(values[name], interval_of(name, values[name]), chances.get(name)) for name in names}
    return Row(setting, label, group, figures, missing, reason, on_validation, citations(first))


def _finite(metric: str, value: float) -> float:
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


# -----------------------------------------------------------------------------
# Which runs are seeds of one row: those whose configurations agree in all that makes a run what it is.


def _essence(run: Run) -> dict[str, Any]:
    """The configuration without what may differ between the seeds of a row."""
    flat = flatten({**run.values, "model": _model(run), "model_defaults": {}})
    return {key: value for key, value in flat.items() if not any(key == n or key.startswith(f"{n}.") for n in _FREE)}


def _model(run: Run) -> dict[str, Any]:
    """What the run file sets of the model, and the defaults that it was begun with where they are no longer today's."""
    today = default_fields(run.model_type)
    noted = {} if "from" in run.values["model"] else earlier_default_fields(run.model_type)
    if run.value("model_defaults") is not None:
        noted = run.value("model_defaults").get(run.model_type, {})
    return {**{name: value for name, value in noted.items() if today.get(name) != value}, **run.values.get("model", {})}


def _key(run: Run) -> str:
    # One folder may have held several tasks, one after the other.
    return json.dumps([_essence(run), run.task, run.length], sort_keys=True, default=str)


def _refuse_mixed(group: list[Run]) -> None:
    """Seeds that are no independent runs of one experiment must not be averaged."""
    for before, run in itertools.pairwise(group):
        if before.seed == run.seed:
            raise UserError(
                f"{before.folder} and {run.folder} are the same run, with seed {run.seed}: name one of them"
            )
        if before.fingerprints != run.fingerprints and None not in (before.fingerprints, run.fingerprints):
            raise UserError(
                f"{before.folder} and {run.folder} have the same configuration, but other data: report them apart"
            )


# -----------------------------------------------------------------------------
# Names of rows. They are as short as tells the rows of one table apart, and a model has the same name at all lengths.


def _labels(groups: list[list[Run]], settings: list[Setting]) -> list[str]:
    """A name for each group: its model type, with the keys in which it differs from others of its setting and type.

    The one whose folder is called like the model type has no more to its name, whatever stands beside it: so it is one
    row, and one curve, at all lengths.
    """
    alike: dict[tuple, list[int]] = defaultdict(list)
    for index, (group, setting) in enumerate(zip(groups, settings, strict=True)):
        alike[setting, group[0].model_type].append(index)
    labels = [group[0].model_type for group in groups]
    for indices in alike.values():
        if len(indices) > 1:
            runs = [groups[index][0] for index in indices]
            plain = [_folder(run).name == run.model_type for run in runs]
            for index, difference, is_plain in zip(indices, _differences(runs), plain, strict=True):
                label = labels[index]
                if not is_plain or sum(plain) > 1:
                    labels[index] = difference if difference.startswith(label) else f"{label} ({difference})"
    return labels


def _differences(runs: list[Run]) -> list[str]:
    """The difference of each of several rows from the others: a few keys if they are short, or else its folder."""
    essences = [_essence(run) for run in runs]
    used = {
        key: [_used(run, essence, key) for run, essence in zip(runs, essences, strict=True)] for key in _keys(essences)
    }
    used = {key: values for key, values in used.items() if len({json.dumps(v, default=str) for v in values}) > 1}
    said = [
        ", ".join(f"{key.removeprefix('model.')} {values[index]}" for key, values in used.items())
        for index in range(len(runs))
    ]
    is_short = len(used) <= _MOST_DIFFERENCES and max(map(len, said)) <= _LONGEST_DIFFERENCE
    # Python's writing of a list or a map is no name.
    is_plain = not any(isinstance(value, list | dict) for values in used.values() for value in values)
    if is_short and is_plain and len(set(said)) == len(said):
        return said
    return shortest([_folder(run) for run in runs])


def _folder(run: Run) -> Path:
    """The folder of a row: that of its run, or of its seeds."""
    folder = run.folder.absolute()
    return folder.parent if _SEED_FOLDER.fullmatch(folder.name) else folder


def _used(run: Run, essence: dict[str, Any], key: str) -> Any:
    """The value that a key has come to: a field of the model that is left out, or null, has a default."""
    name = key.removeprefix("model.")
    return run.model_fields[name] if name != key and name in run.model_fields else essence.get(key)


def _keys(essences: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for essence in essences for key in essence))


# -----------------------------------------------------------------------------
# Chance. An accuracy says little beside the share of the most frequent class, which only the data themselves can tell.


def _chance(run: Run, key: str) -> tuple[float | None, str | None]:
    """Share of the most frequent class in the samples that the run's evaluations read of a split; else why it is not
    known.

    Args:
        key: the key of config.yaml that names the split.
    """
    try:
        # The test split is read whole.
        return _majority(*find_data(run, key), run.value("eval.samples") if key == _VALIDATION_KEY else None), None
    except UserError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{key}, {run.value(key)}, cannot be read"


def _majority(folder: Path, manifest: Manifest, wanted: int | None) -> float | None:
    """Share of the most frequent class in all samples, or in the `wanted` of them that evaluations choose; None without
    classes.
    """
    if manifest.num_labels is None or "labels" not in manifest.columns:
        return None
    chosen = _chosen(sum(shard["samples"] for shard in manifest.shards), wanted)
    counts, first = np.zeros(manifest.num_labels, dtype=np.int64), 0
    for shard in manifest.shards:
        column = parquet_file(folder / shard["file"]).read(columns=["labels"])["labels"]
        end = first + len(column)
        if chosen is not None:
            column = column.take(chosen[(first <= chosen) & (chosen < end)] - first)
        first = end
        while hasattr(column.type, "value_type"):
            column = column.combine_chunks().flatten()
        labels = column.to_numpy()
        counts += np.bincount(labels[labels != IGNORED], minlength=len(counts))
    return float(counts.max() / counts.sum()) if counts.sum() else None


def _chosen(available: int, wanted: int | None) -> np.ndarray | None:
    """The samples that evaluations read; None: all."""
    if wanted is None or wanted >= available:
        return None
    # It brings torch, which a report whose evaluations read all samples need not wait for.
    say_loading("report")
    from ..run.evaluation import chosen_samples

    return chosen_samples(available, wanted)
