"""Tables in the documents, drawn between marks."""

import re
import textwrap
from collections.abc import Iterable

from longmix.trainer.tables.text import Markdown
from longmix.trainer.tables.writing import markdown

WIDTH = 120


def replace(text: str, name: str, table: str) -> str:
    """The document `text` with `table` in place of what stands between its marks of that name.

    Raises:
        ValueError: the document has no such marks.
    """
    pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
    if not re.search(pattern, text, re.DOTALL):
        raise ValueError(f"no marks of the table {name!r} in the document")
    return re.sub(pattern, lambda found: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)


def draw(header: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are Markdown: the first column to the left, the others to the right."""
    cells = [[Markdown(cell) for cell in row] for row in (header, *rows)]
    return markdown(cells[0], cells[1:], right=range(1, len(header)))


def measured(figures: Iterable[dict[str, str]], before: str = "") -> str:
    """The paragraph under a table: `before`, and when, on what and with which code its figures were measured.

    Args:
        figures: each has `date`, `commit` and `machine`.
    """
    commits = {}
    for figure in figures:
        commit = figure["commit"].removesuffix("+changes")
        commits.setdefault((figure["date"], figure["machine"]), set()).add(commit)
    lines = (f"{date} on {machine}, commits {', '.join(sorted(them))}" for (date, machine), them in commits.items())
    sentence = f"Measured {'; '.join(lines)}." if commits else ""
    return textwrap.fill(before + sentence, WIDTH)
