"""From runs to rows: runs that differ in nothing but their seed are one row, with mean and interval over the seeds."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from longmix.data_prep.errors import UserError

from ..many_runs.read import METRICS, Run, missing_seeds
from ..tables.figures import Figure, over_seeds
from .budget import Budget, budget_of, conditions, letters
from .chance import VALIDATION_KEY, chance_of
from .cited import Cited, citations
from .identity import key_of, labels_of
from .metrics import finite, interval_of
from .settings import Setting, settings_of


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
    """Each share of the most frequent class in rows of a setting once, with the letters that it belongs to where there
    are several: rows whose evaluations read other samples have others.
    """
    found: dict[float, list[str]] = {}
    for row in rows:
        value = share(row)
        if value is not None and row.letter not in found.setdefault(value, []):
            found[value].append(row.letter)
    is_marked = len(found) > 1
    return [(value, ", ".join(filter(None, letters)) if is_marked else "") for value, letters in found.items()]


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
            groups[key_of(run)].append(run)
    if not groups:
        reasons = "; ".join(f"{folder}: {reason}" for folder, reason in left_out)
        raise UserError(f"there is nothing to report yet: {reasons}")
    for group in groups.values():
        group.sort(key=lambda run: run.seed)
        _refuse_mixed(group)
    # A seed that has diverged counts, too: without it the others would look like all that there were.
    without = [key_of(run) for run in runs if run.values and (run.problem is not None or run.metric is None)]
    planned = [folder.parent for folder, reason in left_out if reason.startswith(("not started", "failed before"))]
    settings = settings_of([group[0] for group in groups.values()])
    labels = labels_of(list(groups.values()), settings)
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


def _row(group: list[Run], setting: Setting, label: str, missing: int) -> Row:
    first = group[0]
    names = [name for name in first.figures if all(name in run.figures for run in group)]
    names.sort(key=lambda name: name != first.metric)
    # The compared figure says already what the loss would.
    if first.metric != "loss":
        names = [name for name in names if name != "loss"]
    has_chance = "accuracy" in names and first.objective.endswith("classification")
    chance, reason = chance_of(first, first.data_key) if has_chance else (None, None)
    on_validation = chance
    if has_chance and first.data_key != VALIDATION_KEY:
        on_validation = chance_of(first, VALIDATION_KEY)[0]
    chances = {"accuracy": chance, **first.reported_chances}
    values = {name: [finite(name, run.figures[name]) for run in group] for name in names}
    figures = {name: over_seeds(values[name], interval_of(name, values[name]), chances.get(name)) for name in names}
    return Row(setting, label, group, figures, missing, reason, on_validation, citations(first))
