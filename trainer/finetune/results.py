"""Results of fine-tuning: from the predictions of several seeds to a table on the console, as JSON and as Markdown."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.made_files import write_files
from longmix.data_prep.state_files import read_json

from ..many_runs.finetuned import TEST
from ..objectives import metrics
from ..tables import writing
from ..tables.figures import Figure, interval, over_seeds, percent
from ..tables.text import escaped
from .tasks import CUSTOM, TASKS, Task

FILE_NAME, PAGE = "results.json", "results.md"
_TITLE = "# Fine-tuning results of "


@dataclass(frozen=True)
class SplitResult:
    """Figures of one dev split, or of a labelled test split; "score" is the mean of its metrics."""

    split: str
    samples: int
    figures: dict[str, Figure]


@dataclass(frozen=True)
class SearchedRate:
    """One of several learning rates, and its scores on the selection split: one for each seed that searched, None
    where training diverged.
    """

    learning_rate: float
    scores: list[float | None]

    @property
    def mean(self) -> float | None:
        return None if None in self.scores else float(np.mean(self.scores))


@dataclass(frozen=True)
class TaskResult:
    """The figures of a task.

    Attributes:
        splits: the dev splits, and the labelled test split of a user's own task.
        selection: the part of the training data that chose the checkpoints; None in tables of earlier versions.
        search: the learning rates that competed there.
    """

    task: str
    seeds: list[int]
    splits: list[SplitResult]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    selection: SplitResult | None = None
    search: list[SearchedRate] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean over dev splits (MNLI has two) and metrics, as GLUE averages; of the test split where it is alone."""
        splits = [split for split in self.splits if split.split != TEST] or self.splits
        return float(np.mean([split.figures["score"].mean for split in splits]))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the score is the mean of."""
        if self.task in TASKS:
            return TASKS[self.task].metrics
        if "metric" in self.settings:
            return (self.settings["metric"],)
        return tuple(name for name in self.splits[0].figures if name not in ("score", *metrics.ERRORS))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TaskResult":
        """A task from its JSON form; what is derived there is derived again."""
        splits = [_split(split) for split in values["splits"]]
        selection = values.get("selection")
        return cls(
            values["task"],
            values["seeds"],
            splits,
            values["settings"],
            values["notes"],
            None if selection is None else _split(selection),
            [SearchedRate(**one) for one in values.get("search", [])],
        )


def _split(values: dict[str, Any]) -> SplitResult:
    """A split from its JSON form."""
    figures = {}
    for name, figure in values["figures"].items():
        given = {key: value for key, value in figure.items() if key != "verdict"}
        interval = given["interval"]
        figures[name] = Figure(**{**given, "interval": None if interval is None else tuple(interval)})
    return SplitResult(values["split"], values["samples"], figures)


@dataclass
class Results:
    """The results of one checkpoint. `start` identifies its contents; `skipped` maps the tasks that did not run to the
    reason.
    """

    model: str
    start: str
    tasks: list[TaskResult]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def average(self) -> float | None:
        """Mean score over the GLUE tasks that ran; None when none did."""
        scores = [task.score for task in self.glue_tasks]
        return float(np.mean(scores)) if scores else None

    @property
    def glue_tasks(self) -> list[TaskResult]:
        """The tasks of GLUE among them, over which figures are averaged."""
        return [task for task in self.tasks if task.task in TASKS]

    def as_dict(self) -> dict[str, Any]:
        """JSON's content; figures there are not multiplied by 100."""
        tasks = [{**asdict(task), "score": task.score} for task in self.tasks]
        for values, task in zip(tasks, self.tasks, strict=True):
            for split_values, split in zip(values["splits"], task.splits, strict=True):
                for name, figure in split.figures.items():
                    split_values["figures"][name]["verdict"] = figure.verdict
        return {
            "model": self.model,
            "start": self.start,
            "average": {"score": self.average, "tasks": [task.task for task in self.glue_tasks], "of": len(TASKS)},
            "tasks": tasks,
            "skipped": self.skipped,
            "interval": f"bootstrap, 95 %, seed {metrics.INTERVAL_SEED}",
        }

    def save(self, folder: Path, own: Collection[str]) -> None:
        """Write `results.json` and `results.md` into `folder`, with the tasks that stand there and are not `own`: other
        commands may have written since.

        Raises UserError over files that are not longmix's, or another checkpoint's.
        """

        def files() -> dict[str, str]:
            tasks = [*earlier_tasks(folder, self.start, own), *(task for task in self.tasks if task.task in own)]
            self.tasks = sorted(tasks, key=lambda task: [*TASKS, CUSTOM].index(task.task))
            return {FILE_NAME: writing.as_json(self.as_dict()), PAGE: markdown(self)}

        write_files(folder, files, is_earlier)

    @classmethod
    def load(cls, folder: Path) -> "Results | None":
        """The results that `save` wrote into `folder`; None if there are none. Raises UserError for a damaged file."""
        try:
            values = read_json(folder / FILE_NAME)
            tasks = [TaskResult.from_dict(task) for task in values["tasks"]]
            return cls(values["model"], values["start"], tasks, values["skipped"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{folder / FILE_NAME} is no results table of this longmix: move it away, finished runs stay"
            ) from None


def earlier_tasks(folder: Path, start: str, own: Collection[str]) -> list[TaskResult]:
    """Results in `folder` of the tasks that are not `own`. Raises UserError if they are another checkpoint's."""
    earlier = Results.load(folder)
    if earlier is None:
        return []
    if earlier.start != start:
        raise UserError(f"--output {folder} holds the results of another checkpoint, {earlier.model}: choose another")
    return [task for task in earlier.tasks if task.task not in own]


def is_earlier(path: Path) -> bool:
    """Whether a file of this name is one that an earlier version has written, which kept no record of its files."""
    if path.name == FILE_NAME:
        return Results.load(path.parent) is not None  # raises for anything else
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(len(_TITLE)) == _TITLE


# -----------------------------------------------------------------------------
# From predictions to figures. Scores, bootstrap intervals and baselines all come from `objectives.metrics`.


def summarize(
    task: Task,
    seeds: Sequence[int],
    labels: dict[str, np.ndarray],
    predictions: dict[str, np.ndarray],
    settings: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> TaskResult:
    """Score a task. `labels` maps dev split -> (n,), `predictions` dev split -> (seeds, n)."""
    splits, all_notes, further = [], list(notes), task.further_metrics
    for name, gold in labels.items():
        runs = [metrics.evaluate(task.metrics, gold, row, further) for row in predictions[name]]
        for seed, run in zip(seeds, runs, strict=True):
            all_notes += [f"{name}, seed {seed}: {note}" for note in run.notes]
        constant = metrics.baseline(task.metrics, gold, further)
        bounds = metrics.intervals(task.metrics, gold, predictions[name], further=further)
        columns = {metric: ([run.values[metric] for run in runs], constant.values[metric]) for metric in runs[0].values}
        columns["score"] = ([run.score for run in runs], constant.score)
        figures = {
            metric: over_seeds(values, bounds[metric], baseline)
            for metric, (values, baseline) in columns.items()
            if np.isfinite(values).all()  # no file of results holds the error of a model that has diverged
        }
        splits.append(SplitResult(name, len(gold), figures))
    return TaskResult(task.name, list(seeds), splits, settings or {}, all_notes)


# -----------------------------------------------------------------------------
# The table. A reader must see at once which figures are better than no model at all.


VERDICTS = {"above": "better", "below": "WORSE", "contains": "not told apart: the interval contains it"}
_OF_ERRORS = VERDICTS | {"above": "WORSE", "below": "better"}
NUMERIC_COLUMNS = (2, 3, 4, 5, 6, 7, 8)


def header(results: Results) -> tuple[str, ...]:
    """The header of the table; the figures are called after their split."""
    figures = ("task", "metric", "rate", "selection", _reported(results), "spread", "95 % interval", "n", "constant")
    return *figures, "against constant"


def explanation(results: Results) -> str:
    """What the columns of the table mean."""
    split = _reported(results)
    return (
        f"Figures are 100 x the metric{_units(results)}. "
        f"{split}: the mean over seeds on the n examples of the {split} split, its "
        "spread (standard deviation over seeds) and 95 % interval (bootstrap over examples and seeds). constant: what "
        "the best answer reaches that is the same for every example. selection: the mean over seeds on the part of the "
        "training data that chose the checkpoints, and the learning rate where there were several."
    )


def _units(results: Results) -> str:
    """A remark on figures that are no shares."""
    names = {metric for task in results.tasks for split in task.splits for metric in split.figures}
    return ", but rmse and mae in the unit of the label, the lower the better" if names & {*metrics.ERRORS} else ""


def _reported(results: Results) -> str:
    names = {TEST if split.split == TEST else "dev" for task in results.tasks for split in task.splits}
    return " or ".join(sorted(names)) or "dev"


def rows(results: Results) -> list[tuple[str, ...]]:
    """Cells of the table, one row per task, dev split and metric; tasks with two metrics get a "score" row, their
    mean.
    """
    cells = []
    for task in results.tasks:
        for split in task.splits:
            for metric, figure in split.figures.items():
                if metric == "score" and len(task.metrics) == 1:
                    continue
                is_error = metric in metrics.ERRORS
                shown = "{:.4g}".format if is_error else percent
                label = task.task if len(task.splits) == 1 else f"{task.task} {split.split.removeprefix('dev-')}"
                if split.split == TEST and _reported(results) != TEST:
                    label = f"{task.task} ({TEST})"
                rate = task.settings.get("learning_rate")
                # Runs of earlier versions lack some of those of today.
                selection = None if task.selection is None else task.selection.figures.get(metric)
                cells.append(
                    (
                        label,
                        metric,
                        "-" if rate is None else f"{rate:g}",
                        "-" if selection is None else shown(selection.mean),
                        shown(figure.mean),
                        "-" if figure.spread is None else shown(figure.spread),
                        interval(figure.interval, shown),
                        str(split.samples),
                        shown(figure.baseline),
                        (_OF_ERRORS if is_error else VERDICTS)[figure.verdict],
                    )
                )
    return cells


def footer(results: Results) -> list[str]:
    """Lines below the table: the average of several tasks and what it is over, tasks that did not run, notes."""
    lines = []
    names = [task.task for task in results.glue_tasks]
    if len(names) > 1:
        which = f"{len(names)} of {len(TASKS)} tasks ({', '.join(names)})"
        lines.append(f"GLUE average on dev over {which}: {percent(results.average)}")
    for task in results.tasks:
        seeds = "1 seed" if len(task.seeds) == 1 else f"{len(task.seeds)} seeds"
        lines.append(f"{task.task}: {seeds}{_settings(task.settings)}{_selected(task.selection)}")
    lines += [f"{task.task}: {note}" for task in results.tasks for note in task.notes]
    lines += [f"skipped {name}: {reason}" for name, reason in results.skipped.items()]
    return lines


def _settings(settings: dict[str, Any]) -> str:
    """The settings as they were given: a rate that follows from the width has no digits that say nothing."""
    shown = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in settings.items()}
    return "".join(f", {name.replace('_', ' ')} {value}" for name, value in shown.items())


def _selected(selection: SplitResult | None) -> str:
    """The selection score, with its spread."""
    if selection is None:
        return ""
    score = selection.figures["score"]
    spread = "" if score.spread is None else f", spread {percent(score.spread)}"
    return f", selection score {percent(score.mean)} ({selection.samples} examples{spread})"


def console(results: Results) -> str:
    """The table for a terminal."""
    lines = writing.aligned(header(results), rows(results), NUMERIC_COLUMNS)
    below = map(printable, [*footer(results), explanation(results)])
    return "\n".join([printable(f"Model: {results.model}"), *lines, "", *below])


def markdown(results: Results) -> str:
    """The table as Markdown."""
    lines = [f"# Fine-tuning results of {escaped(results.model)}", "", writing.markdown(header(results), rows(results))]
    lines += ["", *(f"- {escaped(line)}" for line in footer(results)), "", explanation(results), ""]
    return "\n".join(lines)
