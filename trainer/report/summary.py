"""From runs to rows: runs that differ in nothing but their seed are one row, with mean and interval over the seeds."""

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..configuration import flatten
from .cited import Cited, citations
from .runs import Run, missing_seeds

CONFIDENCE = 0.95
# In percent; all other figures are as they come.
_PERCENT = re.compile(r"accuracy|(^|_)f1$|roc_auc")
_HIGHER_IS_BETTER = re.compile(r"accuracy|(^|_)f1$|roc_auc|matthews|pearson|spearman")
_PLACE = re.compile(r"accuracy_at_(\d+)")
# May differ between the seeds of a row: where and when a run was made, not which run it is.
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
_MOST_DIFFERENCES = 2
IGNORED_LABEL = -100


@dataclass(frozen=True)
class Figure:
    """One metric of a row: a value for each seed, and what they say together.

    Attributes:
        deviation: standard deviation over the seeds; None with one.
        interval: CONFIDENCE interval of the mean, by Student's t over the seeds; None with one.
    """

    metric: str
    values: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.deviation is None:
            return None
        count = len(self.values)
        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * self.deviation / math.sqrt(count)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Setting:
    """What rows must have in common to be compared: the same task, data and length."""

    task: str
    data: str
    length: int | None
    horizon: int | None
    split: str

    @property
    def title(self) -> str:
        says_no_more = self.data in (self.task, f"{self.task}-{self.length}")
        title = self.task if says_no_more else f"{self.task} ({self.data})"
        title += "" if self.length is None else f", N = {self.length}"
        return title if self.horizon is None else f"{title}, horizon {self.horizon}"

    @property
    def slug(self) -> str:
        """For the names of files."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.title} {self.split}".lower()).strip("-")


@dataclass(frozen=True)
class Row:
    """The seeds of one configuration.

    Attributes:
        label: the model type, with what tells it from other rows of its setting.
        left_out: how many seeds of it are in `Report.left_out`.
        chance: what always answering the most frequent class reaches in accuracy; None for other tasks, or where the
            data are not at hand.
        cited: what the papers report for this model and task.
    """

    setting: Setting
    label: str
    runs: list[Run]
    figures: dict[str, Figure]
    left_out: int
    chance: float | None
    cited: list[Cited]

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
    def against_chance(self) -> str | None:
        """Where the interval of the accuracy lies; None without one."""
        figure = self.figures.get("accuracy")
        if figure is None or figure.interval is None or self.chance is None:
            return None
        low, high = figure.interval
        return "above" if low > self.chance else "below" if high < self.chance else "contains it"


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
            left_out.append((run.folder, "has no figures: data.eval and data.test are null"))
        elif run.problem is None:
            groups[_key(run)].append(run)
    if not groups:
        reasons = "; ".join(f"{folder}: {reason}" for folder, reason in left_out)
        raise UserError(f"there is nothing to report yet: {reasons}")
    for group in groups.values():
        group.sort(key=lambda run: run.seed)
        _refuse_mixed(group)
    unfinished = [_key(run) for run in runs if run.problem is not None and run.values]
    planned = [folder.parent for folder, reason in left_out if reason.startswith(("not started", "failed before"))]
    labels = _labels(list(groups.values()))
    rows = []
    for (key, group), label in zip(groups.items(), labels, strict=True):
        parents = {run.folder.parent for run in group}
        missing = unfinished.count(key) + sum(parent in parents for parent in planned)
        rows.append(_row(group, label, missing))
    tasks = list(dict.fromkeys(row.setting.task for row in rows))
    rows.sort(key=lambda row: (tasks.index(row.setting.task), row.setting.length or 0, row.setting.horizon or 0))
    return Report(rows, left_out)


def is_percent(metric: str) -> bool:
    """Whether a figure is shown in percent."""
    return _PERCENT.search(metric) is not None


def place_of(metric: str) -> int | None:
    """Of the accuracy at a place of a chain the place, from 1: there are many, and a plot shows them."""
    found = _PLACE.fullmatch(metric)
    return None if found is None else int(found[1])


def higher_is_better(metric: str) -> bool:
    return _HIGHER_IS_BETTER.search(metric) is not None


def error_of(metric: str, value: float) -> float:
    """What is left to do: 1 - accuracy (and alike) in percent, and a loss as it is."""
    if not higher_is_better(metric):
        return value
    return 100 * (1 - value) if is_percent(metric) else 1 - value


def _row(group: list[Run], label: str, missing: int) -> Row:
    first = group[0]
    names = [name for name in first.figures if all(name in run.figures for run in group)]
    names.sort(key=lambda name: name != first.metric)
    # What another figure says already.
    if first.metric != "loss":
        names = [name for name in names if name != "loss"]
    figures = {name: Figure(name, [run.figures[name] for run in group]) for name in names}
    chance = _majority(first) if "accuracy" in figures else None
    return Row(_setting(first), label, group, figures, missing, chance, citations(first))


def _setting(run: Run) -> Setting:
    return Setting(run.task, run.dataset, run.length, run.horizon, run.split)


def _essence(run: Run) -> dict[str, Any]:
    """The configuration without what may differ between the seeds of a row."""
    flat = flatten(run.values)
    return {key: value for key, value in flat.items() if not any(key == n or key.startswith(f"{n}.") for n in _FREE)}


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


def _labels(groups: list[list[Run]]) -> list[str]:
    """A name for each group: its model type, with the keys in which it differs from others of its setting and type."""
    alike: dict[tuple, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        alike[_setting(group[0]), group[0].model_type].append(index)
    labels = [group[0].model_type for group in groups]
    for indices in alike.values():
        essences = {index: _essence(groups[index][0]) for index in indices}
        differing = [key for key in _keys(essences.values()) if len({str(e.get(key)) for e in essences.values()}) > 1]
        for index in indices if len(indices) > 1 else ():
            if 0 < len(differing) <= _MOST_DIFFERENCES:
                said = ", ".join(f"{key.removeprefix('model.')} {essences[index].get(key)}" for key in differing)
            else:
                said = groups[index][0].folder.parent.name
            labels[index] += f" ({said})"
    return labels


def _keys(essences: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for essence in essences for key in essence))


def _majority(run: Run) -> float | None:
    """Share of the most frequent class in the split of the figures, if the data are at hand."""
    import pyarrow.parquet

    folder = run.value("data.test") or run.value("data.eval")
    try:
        manifest = Manifest.load(folder)
        if manifest.num_labels is None or "labels" not in manifest.columns:
            return None
        counts = np.zeros(manifest.num_labels, dtype=np.int64)
        for shard in manifest.shards:
            column = pyarrow.parquet.ParquetFile(Path(folder) / shard["file"]).read(columns=["labels"])["labels"]
            while hasattr(column.type, "value_type"):
                column = column.combine_chunks().flatten()
            labels = column.to_numpy()
            counts += np.bincount(labels[labels != IGNORED_LABEL], minlength=len(counts))
    except (UserError, OSError, ValueError, KeyError, TypeError):
        # The data may have been moved since.
        return None
    return float(counts.max() / counts.sum()) if counts.sum() else None
