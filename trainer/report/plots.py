"""The plots of a report as SVG: learning curves over tokens and steps, accuracy against speed, error against length.

Needs matplotlib, the extra `plots`; nothing else of a report does.
"""

import dataclasses
import importlib.util
import io
import math
import statistics
import textwrap
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from longmix.data_prep.errors import printable

from ..many_runs.read import Run
from .counted import Counted
from .levels import Level, draw_levels, levels_note
from .metrics import error_of, higher_is_better, is_percent, is_perplexity, place_of, shown
from .settings import Setting, slug
from .summary import Report, Row, shares_of
from .tables import heading, parameters

HOW_TO_GET_PLOTS = "Without matplotlib there are no plots: pip install 'longmix[plots]'"
SETTINGS = {"svg.hashsalt": "longmix", "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False}
SETTINGS["axes.spines.right"] = False
# Told apart without colours, too (Okabe and Ito's palette).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#7f7f7f", "#6a3d9a")
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*Xh<"
# Of a name in a legend, which stands beside the axes: characters of a line, and lines.
_LINE, _MOST_LINES = 36, 3
# The height of a legend in sizes of its font: of a line, between two names, and around all of them.
_LEGEND_POINTS, _OF_LINE, _BETWEEN_NAMES, _AROUND_LEGEND, _POINTS_PER_INCH = 8, 1.25, 0.5, 2, 72
# Of the axis of learning curves above the first evaluations, where a curve leaves it.
_ROOM = 1.1
# Perplexities that lie so many times apart are drawn by their losses: logarithmically.
_FAR = 100


# -----------------------------------------------------------------------------
# Which plots there are. A report without matplotlib is whole but for them.


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(
    report: Report, counted: dict[Setting, list[Counted]] | None = None
) -> dict[Setting | str, list[tuple[str, str, str]]]:
    """(what it shows, name of the file without its ending, SVG) for each setting, and for each task over lengths.

    `counted`: what counting reaches in settings of language models.
    """
    import matplotlib

    styles = {label: index for index, label in enumerate(dict.fromkeys(row.label for row in report.rows))}
    drawn: dict[Setting | str, list[tuple[str, str, str]]] = {}
    with matplotlib.rc_context(SETTINGS):
        for setting, rows in report.settings.items():
            reached = (counted or {}).get(setting, [])
            plots = [
                (f"Loss over tokens, {setting.title}", f"tokens-{setting.slug}", _over_tokens(rows, styles, reached)),
                (f"Learning curves, {setting.title}", f"learning-{setting.slug}", _learning(rows, styles)),
                (
                    f"{_name(rows[0].metric)} against speed, {setting.title}",
                    f"speed-{setting.slug}",
                    _speed(rows, styles),
                ),
                (f"Error against place, {setting.title}", f"places-{setting.slug}", _places(rows, styles)),
            ]
            drawn[setting] = [(what, name, svg) for what, name, svg in plots if svg is not None]
        names: Counter[str] = Counter()
        for title, rows in _over_lengths(report):
            name = slug(f"length {title} {rows[0].setting.split}")
            names[name] += 1
            name += f"-{names[name]}" if names[name] > 1 else ""
            plot = (f"Error against sequence length, {title}", name, _lengths(rows, styles))
            drawn.setdefault(title, []).append(plot)
    return {key: plots for key, plots in drawn.items() if plots}


def _name(metric: str) -> str:
    name = heading(metric)
    return name[0].upper() + name[1:]


# -----------------------------------------------------------------------------
# Curves over lengths. Points on one curve must differ in their length alone, which only the data's settings can tell.


def _over_lengths(report: Report) -> list[tuple[str, list[Row]]]:
    """(title, rows) of each curve over lengths: one task, family of data, horizon, objective, split and metric."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in report.rows:
        if row.setting.length is not None and row.runs[0].is_of_a_length:
            alike = dataclasses.replace(row.setting, data="", length=None)
            groups[alike, row.metric, row.runs[0].family(counts_matter=False)].append(row)
    found = [part for rows in groups.values() for part in _one_of_each_length(rows)]
    return [(_title(rows), rows) for rows in found if len({row.setting.length for row in rows}) > 1]


def _one_of_each_length(rows: list[Row]) -> list[list[Row]]:
    """A curve has one data set at each length: where there are several, those of equal sample counts go together, and
    where that does not tell them apart those of one name."""
    for key in (lambda row: "", lambda row: row.runs[0].family(counts_matter=True), lambda row: row.setting.data):
        parts: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            parts[key(row)].append(row)
        data_sets = [{(row.setting.length, row.setting.data) for row in each} for each in parts.values()]
        if all(len(each) == len({length for length, _ in each}) for each in data_sets):
            break
    return list(parts.values())


def _title(rows: list[Row]) -> str:
    """The title of a plot over lengths: the names of the data sets but for the length."""
    setting = rows[0].setting
    names = [row.setting.data.removesuffix(f"-{row.setting.length}") for row in rows]
    data = ", ".join(dict.fromkeys(names))
    return dataclasses.replace(setting, data=data, length=None).title


# -----------------------------------------------------------------------------
# The kinds of plots. Each shows the seeds' range, for a mean alone hides how far they lie apart.


def _learning(rows: list[Row], styles: dict[str, int]) -> str | None:
    """The validation split's figure over the steps: the mean of the seeds, and from the lowest to the highest."""
    metric = rows[0].metric
    lines = []
    for row in rows:
        curves = [_curve(run, metric) for run in row.runs]
        steps = sorted(set.intersection(*map(set, curves)))
        lines.append((row, steps, [[shown(metric, curve[step]) for curve in curves] for step in steps]))
    levels = []
    if metric == "accuracy":
        for chance, of in shares_of(rows, lambda row: row.validation_chance):
            levels.append(Level(100 * chance, of, "most frequent class", "#888888", (1, 3)))
    figure, axes = _axes()
    if is_perplexity(metric):
        axes.set_yscale("log")  # they begin at the size of the vocabulary, beside which all ends are one line
    if not _draw_curves(axes, lines, levels, styles, may_leave=not higher_is_better(metric)):
        return None
    split = rows[0].setting.split if rows[0].runs[0].is_finetuned else "validation"
    axes.set(xlabel="step", ylabel=_plain(f"{split} {heading(metric)}"))
    return _svg(figure, f"shaded: lowest to highest seed{levels_note(levels)}")


def _over_tokens(rows: list[Row], styles: dict[str, int], counted: list[Counted]) -> str | None:
    """The validation loss of language models over the tokens that training has read, and what counting reaches."""
    if rows[0].setting.objective is None:
        return None
    lines = []
    for row in rows:
        curves = [_loss_over_tokens(run) for run in row.runs]
        steps = sorted(set.intersection(*map(set, curves)))
        # By one step the seeds have read about as many tokens.
        tokens = [statistics.fmean(curve[step][0] for curve in curves) for step in steps]
        lines.append((row, tokens, [[curve[step][1] for curve in curves] for step in steps]))
    levels = []
    for each in counted:
        of = ", ".join(each.letters)
        levels.append(Level(each.unigram, of, "unigram", "#888888", (1, 3)))
        levels.append(Level(each.bigram, of, "interpolated bigram", "#444444", (4, 2)))
    figure, axes = _axes()
    if not _draw_curves(axes, lines, levels, styles, may_leave=True):
        return None
    axes.set(xlabel="tokens of training", ylabel="validation loss, nats")
    axes.xaxis.set_major_formatter(_engineering())
    return _svg(figure, f"shaded: lowest to highest seed{levels_note(levels)}")


def _draw_curves(
    axes: Any,
    lines: list[tuple[Row, list[float], list[list[float]]]],
    levels: list[Level],
    styles: dict[str, int],
    may_leave: bool,
) -> bool:
    """The mean of the seeds, and from the lowest to the highest; False if no line has two points.

    Args:
        lines: row, places on the x axis, and the seeds' figures at each.
        may_leave: whether what grows beyond the first evaluations and the levels leaves the axis, and the legend says
            so: on an axis that holds a run which diverges, all others lie on the zero line.
    """
    lines = [(row, places, values) for row, places, values in lines if len(places) > 1]
    if not lines:
        return False
    highest = max([max(values[0]) for _, _, values in lines] + [level.place for level in levels])
    lowest = min([min(map(min, values)) for _, _, values in lines] + [level.place for level in levels])
    top, end = _ROOM * highest, math.inf
    if may_leave and top > lowest >= 0 and any(max(map(max, values)) > top for _, _, values in lines):
        bottom = lowest / _ROOM if axes.get_yscale() == "log" else lowest - 0.05 * (top - lowest)
        axes.set_ylim(bottom, top)
        # What lies further off is drawn no further: there are numbers that matplotlib cannot place.
        end = 2 * top - bottom
    for row, places, values in lines:
        style, label = _style(styles[row.label]), _label(row)
        if end < math.inf and max(map(max, values)) > top:
            label += ", leaves the plot"
        means = [min(statistics.fmean(each), end) for each in values]
        axes.plot(places, means, label=label, **style, markevery=[-1])
        lows, highs = [min(*each, end) for each in values], [min(max(each), end) for each in values]
        axes.fill_between(places, lows, highs, color=style["color"], alpha=0.18, linewidth=0)
    draw_levels(axes, levels)
    return True


def _loss_over_tokens(run: Run) -> dict[int, tuple[float, float]]:
    """Step -> (tokens that training had read by then, validation loss), for the evaluations whose tokens are known.

    Tokens are noted with the records of training; between two of these they grow with the steps.
    """
    noted = [(record["step"], record["tokens_seen"]) for record in run.training if record.get("tokens_seen")]
    steps, tokens = zip((0, 0), *noted, strict=True)
    curve = _curve(run, "loss")
    return {step: (float(np.interp(step, steps, tokens)), loss) for step, loss in curve.items() if step <= steps[-1]}


def _curve(run: Run, metric: str) -> dict[int, float]:
    """Step -> figure of the validation split, where it is finite."""
    pairs = ((record["step"], record.get(metric)) for record in run.evaluations)
    return {step: float(value) for step, value in pairs if value is not None}


def _speed(rows: list[Row], styles: dict[str, int]) -> str | None:
    """The compared figure over tokens per second; the area of a disc is the number of parameters."""
    from matplotlib.ticker import LogLocator, NullFormatter

    metric = rows[0].metric
    figure, axes = _axes()
    points = [(row, row.mean_of("tokens_per_second"), row.figures.get(metric)) for row in rows]
    points = [(row, x, y) for row, x, y in points if x and y is not None and math.isfinite(y.mean)]
    if not points:
        return None
    largest = max(row.mean_of("parameters") or 1 for row, _, _ in points)
    for row, x, y in points:
        colour = _style(styles[row.label])["color"]
        count = row.mean_of("parameters")
        if y.interval is not None:
            low, high = (shown(metric, bound) for bound in y.interval)
            axes.plot([x, x], [low, high], color=colour, linewidth=1)
        label = _label(row) if count is None else f"{_label(row)}: {parameters(count)}"
        axes.scatter(
            [x], [shown(metric, y.mean)], s=30 + 170 * (count or 0) / largest, color=colour, alpha=0.75, label=label
        )
    axes.set(xlabel="training, tokens/s", ylabel=_plain(f"{rows[0].setting.split} {heading(metric)}"))
    if is_perplexity(metric) and max(y.mean for _, _, y in points) > _FAR * min(y.mean for _, _, y in points) > 0:
        axes.set_yscale("log")
    if max(x for _, x, _ in points) > 3 * min(x for _, x, _ in points):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())  # else their numbers run into those
    axes.xaxis.set_major_formatter(_engineering())
    return _svg(figure, "area: parameters; bars: 95 % interval over seeds")


def _lengths(rows: list[Row], styles: dict[str, int]) -> str:
    """The error over the length N of the samples."""
    metric = rows[0].metric
    figure, axes = _axes()
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[row.label].append(row)
    for label, line in lines.items():
        line.sort(key=lambda row: row.setting.length)
        lengths = [row.setting.length for row in line]
        means = [error_of(metric, row.figures[metric].mean) for row in line]
        style = _style(styles[label])
        axes.plot(lengths, means, label=_plain(label), **style)
        for row in line:
            errors = [error_of(metric, value) for value in row.figures[metric].values]
            axes.plot([row.setting.length] * 2, [min(errors), max(errors)], color=style["color"], linewidth=1)
    axes.set_xscale("log", base=2)
    lengths = sorted({row.setting.length for row in rows})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    is_error = error_of(metric, 1.0) != 1.0
    unit = " (%)" if is_percent(metric) else ""
    what = f"error{unit}" if is_error else heading(metric)
    axes.set(xlabel="sequence length N", ylabel=_plain(f"{rows[0].setting.split} {what}"))
    return _svg(figure, "bars: lowest to highest seed")


def _places(rows: list[Row], styles: dict[str, int]) -> str | None:
    """Errors over the places of a chain, where there are such figures."""
    figure, axes = _axes()
    is_drawn = False
    for row in rows:
        line = {place_of(metric): found for metric, found in row.figures.items() if place_of(metric) is not None}
        if not line:
            continue
        is_drawn = True
        style = _style(styles[row.label])
        axes.plot(list(line), [100 * (1 - found.mean) for found in line.values()], label=_label(row), **style)
        for place, found in line.items():
            errors = [100 * (1 - value) for value in found.values]
            axes.plot([place] * 2, [min(errors), max(errors)], color=style["color"], linewidth=1)
    axes.set(xlabel="place in the chain", ylabel=f"{rows[0].setting.split} error (%)")
    return _svg(figure, "bars: lowest to highest seed") if is_drawn else None


# -----------------------------------------------------------------------------
# The look that all share: equal runs give equal files, byte for byte.


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.grid(color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _engineering() -> Any:
    """20 k, not 2 x 10^4."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter()


def _label(row: Row) -> str:
    """The name of a row in a legend, with the letter of those that it compares with."""
    return _plain(f"{row.label} ({row.letter})" if row.letter else row.label)


def _style(index: int) -> dict[str, Any]:
    """The style of a line; a model has the same in every plot."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINES[index // len(COLOURS) % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def _plain(text: str) -> str:
    """A text from outside that matplotlib draws as it is: no formula, and not left out of the legend."""
    text = printable(text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _wrapped(label: str) -> str:
    """A name in lines for a legend, one from `_plain`; of one too long for these the middle is left out."""
    text = label.replace(r"\$", "$")  # else a line might end within the two
    if len(text) > _MOST_LINES * _LINE:
        text = f"{text[: _LINE * (_MOST_LINES - 1)]}…{text[1 - _LINE :]}"
    lines = textwrap.wrap(text, _LINE)
    if len(lines) > _MOST_LINES:  # ends of lines that are left empty between words
        lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join(lines).replace("$", r"\$")


def _svg(figure: Any, note: str) -> str:
    (axes,) = figure.axes
    handles, labels = axes.get_legend_handles_labels()
    labels = [_wrapped(label) for label in labels]
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title=None, fontsize=_LEGEND_POINTS)
    # As tall as the legend, of which matplotlib would leave out what lies below the figure.
    lines = sum(label.count("\n") + 1 for label in labels)
    points = _LEGEND_POINTS * (_OF_LINE * lines + _BETWEEN_NAMES * len(labels) + _AROUND_LEGEND)
    figure.set_figheight(max(figure.get_figheight(), points / _POINTS_PER_INCH))
    axes.set_title(note, loc="right", fontsize=7, color="#666666")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
