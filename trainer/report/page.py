"""The report as one HTML file: plots inside, a table that sorts by a click, and nothing fetched from anywhere."""

import base64
import re

from ..tables.figures import ABSENT
from ..tables.text import html_text
from . import budget
from .counted import Counted
from .metrics import is_in_table, shown
from .settings import Setting
from .summary import Report, Row
from .tables import (
    EXPLANATION,
    heading,
    held_equal,
    hours,
    interval,
    lost_to_naive,
    number,
    of_metric,
    of_variables,
    parameters,
    seeds,
    speed,
)

# The policy forbids what a self-contained page does not need, the network first of all.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Results</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 2rem auto; max-width: 96rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
td.number, th.number { text-align: right; }
th { border-bottom: 2px solid #888; background: #fff; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
tbody tr:hover { background: #f3f7fa; }
td.partial { color: #a03000; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: 13px; }
</style>
</head>
<body>
<h1>Results</h1>
<p>A click on a heading sorts; a second one turns the order round.</p>
<div class="scroll">
<table id="rows">
<thead><tr>@HEAD@</tr></thead>
<tbody>
@ROWS@
</tbody>
</table>
</div>
@HELD@
@LEFT_OUT@
<p class="note">@EXPLANATION@</p>
@PLOTS@
<script>
"use strict";
const table = document.getElementById("rows"), body = table.tBodies[0];
const key = (row, column) => row.cells[column].dataset.key ?? row.cells[column].textContent;
table.tHead.addEventListener("click", event => {
  const head = event.target.closest("th");
  if (!head) return;
  const falls = head.getAttribute("aria-sort") === "ascending", isNumber = head.classList.contains("number");
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falls ? "descending" : "ascending");
  const rows = Array.from(body.rows), column = head.cellIndex;
  rows.sort((a, b) => {
    const [x, y] = [key(a, column), key(b, column)];
    // What is not there stays below, whatever the order.
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNumber ? Number(x) - Number(y) : x.localeCompare(y, "en", {numeric: true});
    return falls ? -order : order;
  });
  body.append(...rows);
});
</script>
</body>
</html>
"""
# (name, whether it is a number)
_COLUMNS = (
    ("task", False),
    ("model", False),
    ("metric", False),
    ("mean", True),
    ("compares with", False),
    ("95 % interval", True),
    ("chance", True),
    ("papers", True),
    *((name, True) for name in budget.COLUMNS),
    ("seeds", True),
    ("parameters", True),
    ("tokens/s", True),
    ("hours", True),
    ("split", False),
    ("device", False),
    ("commit", False),
)


# -----------------------------------------------------------------------------
# The page. All of it stands in one file, so that it can be mailed or opened years later.


def page(
    report: Report,
    plots: dict[Setting | str, list[tuple[str, str, str]]],
    note: str | None,
    counted: dict[Setting, list[Counted]] | None = None,
) -> str:
    """The whole file; `plots` as `plots.draw` gives them, `note`: why there are none; `counted` as in `markdown`."""
    head = "".join(
        f'<th scope="col"{_class(is_number)}><button type="button">{html_text(name)}</button></th>'
        for name, is_number in _COLUMNS
    )
    rows = "\n".join(_row(row, metric) for row in report.rows for metric in row.figures if is_in_table(metric))
    pictures = [part for key, drawn in plots.items() for part in _pictures(key, drawn)]
    if note is not None:
        pictures.append(f'<p class="note">{html_text(note)}</p>')
    parts = {
        "HEAD": head,
        "ROWS": rows,
        "HELD": _held(report, counted or {}),
        "LEFT_OUT": _left_out(report),
        "EXPLANATION": html_text(EXPLANATION),
        "PLOTS": "\n".join([*_forecasts(report), *pictures]),
    }
    # In one pass: what is put in is of the runs, and might hold a mark.
    return re.sub(f"@({'|'.join(parts)})@", lambda mark: parts[mark[1]], _PAGE)


# -----------------------------------------------------------------------------
# Its parts. A cell sorts by its number, not by the text that is shown.


def _row(row: Row, metric: str) -> str:
    figure, cited = row.figures[metric], of_metric(row, metric)
    low = None if figure.interval is None else shown(metric, figure.interval[0])
    chance = None if figure.baseline is None else shown(metric, figure.baseline)
    no_chance = row.no_chance_because or "" if metric == "accuracy" else ""
    sources = "; ".join(f"{entry.source}. {entry.note}" for entry in cited)
    partial = "partial" if row.left_out else ""
    counts = {name: row.mean_of(name) for name in ("parameters", "tokens_per_second", "hours")}
    cells = (
        _cell(row.setting.title),
        _cell(row.label),
        _cell(heading(metric, row.setting.split)),
        _cell(number(metric, figure.mean), shown(metric, figure.mean)),
        _cell(row.letter),
        _cell(interval(metric, figure), low),
        _cell(number(metric, figure.baseline), chance, title=no_chance),
        _cell(", ".join(f"{entry.value:g}" for entry in cited), cited[0].value if cited else None, title=sources),
        *(_cell(text, value) for text, value in row.budget.cells.values()),
        _cell(seeds(row), len(row.runs), title="seeds " + ", ".join(map(str, row.seeds)), kind=partial),
        _cell(parameters(counts["parameters"]), counts["parameters"]),
        _cell(speed(counts["tokens_per_second"]), counts["tokens_per_second"]),
        _cell(hours(counts["hours"]), counts["hours"]),
        _cell(row.setting.split),
        _cell(row.all_of("device")),
        _cell(row.all_of("commit")),
    )
    return f"<tr>{''.join(cells)}</tr>"


_NO_NUMBER = object()


def _cell(text: str, key: object = _NO_NUMBER, title: str = "", kind: str = "") -> str:
    """A cell; with a `key`, a number, it sorts by that, and below all others if it is None or not finite."""
    attributes = f' title="{html_text(title)}"' if title else ""
    classes = kind
    if key is not _NO_NUMBER:
        classes = f"number {kind}".strip()
        is_known = key is not None and key == key
        attributes += f' data-key="{key if is_known else ""}"'
    if classes:
        attributes += f' class="{classes}"'
    return f"<td{attributes}>{html_text(text) or ABSENT}</td>"


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _held(report: Report, counted: dict[Setting, list[Counted]]) -> str:
    """What the rows of each setting of several had in common, and what they had not; and what counting reaches."""
    entries = ""
    for setting, rows in report.settings.items():
        said = [held_equal(rows)] if len(rows) > 1 else []
        said += [each.said for each in counted.get(setting, [])]
        entries += f"<li>{html_text(setting.title)}: {html_text(' '.join(said))}</li>" if said else ""
    return f'<ul class="note">{entries}</ul>' if entries else ""


def _forecasts(report: Report) -> list[str]:
    """Forecasts of each variable beside naive ones, and a line for each row that loses to these."""
    parts = []
    for setting, rows in report.settings.items():
        lost = [f'<p class="note">{html_text(line)}</p>' for row in rows if (line := lost_to_naive(row))]
        header, body = of_variables(rows)
        if lost or body:
            parts.append(f"<h2>{html_text(setting.title)}: beside naive forecasts</h2>")
        if body:
            head = "".join(f'<th scope="col">{html_text(name)}</th>' for name in header)
            cells = ("".join(f"<td>{html_text(cell)}</td>" for cell in line) for line in body)
            lines = "\n".join(f"<tr>{line}</tr>" for line in cells)
            parts.append(
                f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'
            )
        parts += lost
    return parts


def _left_out(report: Report) -> str:
    if not report.left_out:
        return ""
    entries = "".join(
        f"<li><code>{html_text(str(folder))}</code>: {html_text(reason)}</li>" for folder, reason in report.left_out
    )
    return f"<h2>Left out</h2><p>No figure holds anything of these runs.</p><ul>{entries}</ul>"


def _pictures(key: Setting | str, drawn: list[tuple[str, str, str]]) -> list[str]:
    title = f"{key}: all lengths" if isinstance(key, str) else key.title
    parts = [f"<h2>{html_text(title)}</h2>"]
    for what, _, svg in drawn:
        source = base64.b64encode(svg.encode()).decode()
        image = f'<img alt="{html_text(what)}" src="data:image/svg+xml;base64,{source}">'
        parts.append(f"<figure>{image}<figcaption>{html_text(what)}</figcaption></figure>")
    return parts
