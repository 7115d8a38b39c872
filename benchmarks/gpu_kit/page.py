"""One page of everything that has been measured: Markdown, and one HTML file that needs nothing else."""

import html
import json
import re
import shutil
import textwrap
from pathlib import Path

from gpu_kit import plots, tables
from gpu_kit.records import Records
from gpu_kit.setting import TRACE, Setting

from longmix.data_prep.errors import printable_lines
from longmix.data_prep.files import atomic_path, write_text
from longmix.trainer.tables.text import escaped, html_text
from longmix.trainer.tables.writing import markdown

# Characters.
_LONGEST_FIGURE = 32
_STYLE = """body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 2rem auto;
 max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; display: block;
 overflow-x: auto; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; white-space: normal; min-width: 16rem; max-width: 28rem; }
svg { max-width: 100%; height: auto; }
pre { font-size: 12px; overflow-x: auto; }"""


def make(setting: Setting, records: Records, prediction: dict | None) -> Path:
    """Write FOLDER/page anew from what there is; returns the folder."""
    folder = setting.work / "page"
    folder.mkdir(exist_ok=True)
    newest = records.newest()
    sections = list(tables.sections(setting, newest, prediction))
    drawn = plots.draw(setting, newest, prediction)
    note = "" if drawn is not None else "There are no plots: matplotlib is not installed."
    title = f"longmix on {setting.cards} x {setting.card}" if setting.cards else "longmix's GPU kit, tried on a CPU"
    write_text(folder / "report.md", _markdown(title, sections, note, drawn is not None))
    write_text(folder / "report.html", _html(title, sections, note, drawn))
    if drawn is not None:
        write_text(folder / "plots.svg", drawn)
    doctor = newest.get("1/doctor", {}).get("answer")
    if isinstance(doctor, dict):
        write_text(folder / "doctor.txt", doctor["text"])
    if prediction is not None:
        write_text(folder / "prediction.json", json.dumps(prediction, indent=1) + "\n")
    write_text(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in newest.values()))
    if (setting.work / TRACE).is_file():
        with atomic_path(folder / TRACE) as temporary:
            shutil.copyfile(setting.work / TRACE, temporary)
    return folder


def _markdown(title: str, sections: list[tables.Section], note: str, has_plots: bool) -> str:
    parts = [f"# {escaped(title)}"]
    for section in sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [str(escaped(text)) for text in section.texts]
        if section.rows:
            parts.append(markdown(section.header, section.rows, right=range(1, len(section.header))))
        if section.lines:
            parts.append(textwrap.indent(printable_lines(section.lines), "    "))
    parts.append("![Plots](plots.svg)" if has_plots else note)
    return "\n\n".join(part for part in parts if part) + "\n"


def _html(title: str, sections: list[tables.Section], note: str, drawn: str | None) -> str:
    parts = [f"<h1>{html_text(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html_text(section.title)}</h2>")
        parts += [f"<p>{html_text(text)}</p>" for text in section.texts]
        if section.rows:
            parts.append(_table(section))
        if section.lines:
            parts.append(f"<pre>{html.escape(printable_lines(section.lines))}</pre>")
    parts.append(f"<p>{html_text(note)}</p>" if drawn is None else re.sub(r"^.*?(?=<svg)", "", drawn, flags=re.DOTALL))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _table(section: tables.Section) -> str:
    head = "".join(f"<th>{html_text(name)}</th>" for name in section.header)
    rows = ("".join(map(_cell, row)) for row in section.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _cell(text: str) -> str:
    """A figure keeps its line; a reason, of more characters than any figure has, breaks where it must."""
    kind = ' class="text"' if len(text) > _LONGEST_FIGURE else ""
    return f"<td{kind}>{html_text(text)}</td>"
