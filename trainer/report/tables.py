"""The rows of a report as cells, Markdown, CSV and JSON."""

import math
from typing import Any

from ..many_runs.finetuned import DEV, SELECTION, TEST
from ..objectives.metrics import CONFIDENCE
from ..settings import forecast_figures
from ..tables import writing
from ..tables.figures import ABSENT, Figure, percent
from ..tables.figures import interval as write_interval
from ..tables.text import Markdown, code, escaped
from . import budget
from .cited import Cited
from .counted import Counted
from .metrics import is_in_table, is_percent
from .settings import Setting
from .summary import Report, Row, shares_of

# Columns of the tables that hold no numbers.
_TEXTS = ("model", "compares with", "against chance", "device", "commit")
EXPLANATION = (
    f"Figures are the mean over seeds with its {100 * CONFIDENCE:.0f} % interval (Student's t over the seeds; none "
    "with one seed; of perplexities over their logarithms). Those of the test split are of the checkpoint that the "
    "validation split has chosen. Hours are of one run's training, without evaluation, saving and starting; tokens/s "
    "is the median over a run. A + behind a commit: files differed from it."
)


# -----------------------------------------------------------------------------
# Cells: the page shows the same as the tables.


_NAMES = {"roc_auc": "ROC AUC", "f1": "F1", "macro_f1": "macro F1", "rmse": "RMSE"}


def number(metric: str, value: float | None) -> str:
    """A figure for people: accuracy and alike in percent."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "not finite"
    return percent(value, digits=2) if is_percent(metric) else f"{value:.4g}"


def heading(metric: str, split: str = "") -> str:
    """The name of a figure; with the `split` of a setting where a row has those of several splits."""
    for prefix in ("dev_matched", "dev_mismatched", DEV, TEST):
        if metric.startswith(f"{prefix}_"):
            return f"{prefix.replace('_', ' ')} {heading(metric.removeprefix(prefix + '_'))}"
    if split == SELECTION:
        return f"{SELECTION} {heading(metric)}"
    known = _NAMES.get(metric) or forecast_figures.heading(metric)
    name = known or metric.replace("_", " ")
    return f"{name} (%)" if is_percent(metric) else name


def interval(metric: str, figure: Figure) -> str:
    """The interval of a figure for people."""
    return write_interval(figure.interval, lambda bound: number(metric, bound))


def seeds(row: Row) -> str:
    """The number of seeds, with that of all where some have no figures."""
    count = len(row.runs)
    return f"{count} of {count + row.left_out}" if row.left_out else str(count)


def parameters(value: float | None) -> str:
    if value is None:
        return ABSENT
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def speed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def hours(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2g}"


def of_metric(row: Row, metric: str) -> list[Cited]:
    return [cited for cited in row.cited if cited.metric == metric]


# -----------------------------------------------------------------------------
# Markdown, for people: the sources of the papers' figures are numbered as they come.


def markdown(
    report: Report,
    pictures: dict[Setting | str, list[tuple[str, str]]],
    note: str | None,
    counted: dict[Setting, list[Counted]] | None = None,
) -> str:
    """The report as Markdown.

    Args:
        pictures: (what it shows, file) of the plots of each setting, and of each task over its lengths.
        note: why there are no plots; None where there are.
        counted: what counting reaches in settings of language models.
    """
    sources = _Sources()
    lines = ["# Results", ""]
    for setting, rows in report.settings.items():
        lines += [
            f"## {escaped(setting.title)}",
            "",
            _what(setting, rows),
            "",
            _table(rows, sources),
            "",
            *_of_variables(rows),
            *(line for each in (counted or {}).get(setting, []) for line in (escaped(each.said), "")),
        ]
        lines += [line for what, file in pictures.get(setting, []) for line in (f"![{escaped(what)}]({file})", "")]
    for task, drawn in ((key, value) for key, value in pictures.items() if isinstance(key, str)):
        lines += [f"## {escaped(task)}: all lengths", ""]
        lines += [line for what, file in drawn for line in (f"![{escaped(what)}]({file})", "")]
    if report.left_out:
        lines += ["## Left out", "", "No figure above holds anything of these runs.", ""]
        lines += [f"- {code(str(folder))}: {escaped(reason)}" for folder, reason in report.left_out]
        lines.append("")
    if sources.lines:
        lines += ["## Figures of papers", "", *sources.lines, ""]
        lines += ["Their sizes, schedules and splits are not ours.", ""]
    lines.append(EXPLANATION)
    if note is not None:
        lines += ["", note]
    return "\n".join(lines) + "\n"


class _Sources:
    """Numbers the sources of cited figures as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def lines(self) -> list[str]:
        return [f"{number}. {escaped(text)}" for text, number in self._numbers.items()]

    def mark(self, cited: Cited) -> str:
        """The figure, and the number of its source, as Markdown."""
        text = f"{cited.source}. {cited.note}".strip()
        place = self._numbers.setdefault(text, len(self._numbers) + 1)
        return f"{cited.value:g} [{place}]"


def _what(setting: Setting, rows: list[Row]) -> str:
    said = {
        "test": "Test split; the validation split has chosen the checkpoint.",
        SELECTION: "Fine-tuning. selection: the part of the training data that chose the checkpoint, which flatters; "
        f"{_reported(rows)}.",
        "validation": "Validation split, without data.test: with checkpoint.best it has chosen the checkpoint, too.",
    }[setting.split]
    chance = next((row.chance for row in rows if row.chance is not None), None)
    reached = [] if chance is None else [("accuracy", chance)]
    reached += next((list(row.reported_chances.items()) for row in rows if row.reported_chances), [])
    if reached and setting.split == SELECTION:
        said += " Always answering the most frequent class: "
        said += f"{', '.join(f'{heading(name, SELECTION)} {number(name, share)}' for name, share in reached)}."
    elif chance is not None:
        shares = shares_of(rows, lambda row: row.chance)
        reached = [f"{number('accuracy', share)} %{f' ({of})' if of else ''}" for share, of in shares]
        said += f" Always answering the most frequent class: {', '.join(reached)} accuracy."
    reason = next((row.no_chance_because for row in rows if row.no_chance_because is not None), None)
    if chance is None and reason is not None:
        on = f" on {SELECTION}" if setting.split == SELECTION else ""
        said += f" What chance reaches{on} is unknown: {escaped(reason)} (paths are those of where the run was begun)."
    return f"{said} {escaped(held_equal(rows))}" if len(rows) > 1 else said


def _reported(rows: list[Row]) -> str:
    """The split of a fine-tuning that is reported, and where it is from; plain text without a full stop."""
    is_test = any(metric.startswith(f"{TEST}_") for row in rows for metric in row.figures)
    is_dev = any(metric.startswith(DEV) for row in rows for metric in row.figures)
    test = "test: the given test file with labels"
    if not is_dev and not is_test:
        return "dev has no figures until longmix finetune has finished every seed: give its command again"
    given = [*(["dev: the given dev file"] if is_dev else []), *([test] if is_test else [])]
    return f"{'; '.join(given)}, which chose nothing"


def held_equal(rows: list[Row]) -> str:
    """What the rows of a setting have in common, and what they have not."""
    mixtures = [budget.mixture(row.runs[0]) for row in rows]
    return budget.caption([row.budget for row in rows], [row.conditions for row in rows], mixtures)


def _table(rows: list[Row], sources: _Sources) -> str:
    """The table of a setting, without the columns in which no row has anything; numbers are aligned to the right."""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.figures if is_in_table(metric)))
    has_chance = any(row.against_chance for row in rows)
    equal = budget.equal_columns([row.budget for row in rows])
    columns = [name for name in budget.COLUMNS if name not in equal]
    has_letters = any(row.letter for row in rows)
    header = ["model", *(heading(metric, rows[0].setting.split) for metric in metrics)]
    header += ["compares with"] if has_letters else []
    header += ["against chance"] if has_chance else []
    header += [*columns, "papers", "seeds", "parameters", "tokens/s", "hours", "device", "commit"]
    body = []
    for row in rows:
        cells: list[str] = [code(row.label)]
        for metric in metrics:
            figure = row.figures.get(metric)
            text = ABSENT if figure is None else number(metric, figure.mean)
            # Seeds that agree, as of a forecast that nothing is learned for, leave no interval to show.
            is_range = figure is not None and figure.spread
            cells.append(Markdown(f"{text} [{interval(metric, figure)}]") if is_range else text)
        cells += [row.letter] if has_letters else []
        cells += [row.against_chance or ABSENT] if has_chance else []
        cells += [row.budget.cells[name][0] for name in columns]
        marks = [
            f"{'' if metric == row.metric else escaped(heading(metric)) + ' '}{sources.mark(cited)}"
            for metric in metrics
            for cited in of_metric(row, metric)
        ]
        cells += [Markdown(", ".join(marks) or ABSENT), *_made_with(row)]
        body.append(cells)
    filled = [column for column in zip(header, *body, strict=True) if set(column[1:]) != {ABSENT}]
    right = [place for place, column in enumerate(filled) if column[0] not in _TEXTS]
    header, *body = zip(*filled, strict=True)
    return writing.markdown(header, body, right)


def lost_to_naive(row: Row) -> str | None:
    """A line that says to which naive forecasts a row loses, by the means over its seeds; None if to none."""
    lost = forecast_figures.verdict({name: figure.mean for name, figure in row.figures.items()})
    return None if lost is None else f"{row.label}: {lost}."


def of_variables(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the forecasts of each variable beside naive ones; no cells for other tasks."""
    header, body = [], []
    for row in rows:
        means = {name: figure.mean for name, figure in row.figures.items()}
        if forecast_figures.by_variable(means):
            header, lines = forecast_figures.table(means)
            body += [[row.label, *line] for line in lines[1:]]  # the first is of all, above
    return ["model", *header], body


def _of_variables(rows: list[Row]) -> list[str]:
    """Forecasts of each variable, and which rows lose to naive ones, as Markdown; nothing for other tasks."""
    header, body = of_variables(rows)
    body = [[code(label), *cells] for label, *cells in body]
    lines = [writing.markdown(header, body, right=range(2, len(header))), ""] if body else []
    for lost in filter(None, map(lost_to_naive, rows)):
        lines += [escaped(lost), ""]
    return lines


def _made_with(row: Row) -> list[str]:
    return [
        seeds(row),
        parameters(row.mean_of("parameters")),
        speed(row.mean_of("tokens_per_second")),
        hours(row.mean_of("hours")),
        row.all_of("device") or ABSENT,
        row.all_of("commit") or ABSENT,
    ]


# -----------------------------------------------------------------------------
# CSV and JSON, for programs: figures as they are in metrics.jsonl, and everything that the page leaves to its hints.


COLUMNS = (
    "task",
    "data",
    "length",
    "horizon",
    "objective",
    "split",
    "model",
    "model_type",
    "metric",
    "mean",
    "standard_deviation",
    "interval_low",
    "interval_high",
    "seeds",
    "values",
    "seeds_left_out",
    "compares_with",
    "steps",
    "samples_seen",
    "tokens_seen",
    "batch",
    "rate",
    "chance",
    "cited",
    "parameters",
    "tokens_per_second",
    "hours",
    "device",
    "commit",
    "folders",
)


def records(report: Report) -> list[dict[str, Any]]:
    """A map for each row and metric, with the names of COLUMNS. Figures are as in metrics.jsonl: none in percent."""
    found = []
    for row in report.rows:
        setting, given = row.setting, row.budget
        for metric, figure in row.figures.items():
            low, high = figure.interval or (None, None)
            values = (
                *(setting.task, setting.data, setting.length, setting.horizon, row.runs[0].objective, setting.split),
                *(row.label, row.runs[0].model_type, metric, figure.mean, figure.spread, low, high),
                *(row.seeds, figure.values, row.left_out),
                *(row.letter, given.steps, given.samples, given.tokens, given.batch, given.rate, figure.baseline),
                [
                    {"value": _as_ours(cited), "source": cited.source, "note": cited.note}
                    for cited in of_metric(row, metric)
                ],
                *(row.mean_of("parameters"), row.mean_of("tokens_per_second"), row.mean_of("hours")),
                *(row.all_of("device") or None, row.all_of("commit") or None, [str(run.folder) for run in row.runs]),
            )
            found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _as_ours(cited: Cited) -> float:
    return round(cited.value / 100, 6) if is_percent(cited.metric) else cited.value


def as_json(report: Report) -> str:
    """The report as JSON."""
    left_out = [{"folder": str(folder), "reason": reason} for folder, reason in report.left_out]
    return writing.as_json({"confidence": CONFIDENCE, "rows": records(report), "left_out": left_out})


def as_csv(report: Report) -> str:
    """The report as CSV, one line for each row and metric."""
    found = records(report)
    for record in found:
        record["cited"] = "; ".join(f"{entry['value']:g} ({entry['source']})" for entry in record["cited"])
    return writing.as_csv(COLUMNS, found)
