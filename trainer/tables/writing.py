"""Tables as Markdown, as columns on a terminal, as CSV, and as JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from longmix.data_prep.errors import printable

from .text import Markdown, csv_cell, csv_text, escaped

_BARE_PIPE = re.compile(r"(?<!\\)\|")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()) -> str:
    """A table in Markdown without the last line end; the columns `right` (numbers from 0) are aligned to the right.

    A cell means its characters and nothing else, unless it is `Markdown`.
    """
    rule = [Markdown("---:" if column in right else "---") for column in range(len(header))]
    lines = ((_cell(cell) for cell in line) for line in (header, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(text: str) -> str:
    return _BARE_PIPE.sub(r"\\|", text) if isinstance(text, Markdown) else escaped(text)


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The lines of a table for a terminal, in columns as wide as their longest cell, with a rule below the header."""
    table = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return in_columns([table[0], rule, *table[1:]], right)


def in_columns(rows: Iterable[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The same without a rule; there is at least one row."""
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = enumerate(zip(row, widths, strict=True))
        padded = [cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in cells]
        lines.append("  ".join(padded).rstrip())
    return lines


def as_csv(columns: Sequence[str], records: Iterable[dict[str, Any]]) -> str:
    """Maps with the names of `columns` as CSV, a line each; lists have spaces between their entries.

    `from_csv` reads it back: numbers as they are written, texts as they were.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        texts = {key: " ".join(map(str, v)) if isinstance(v, list) else v for key, v in record.items()}
        writer.writerow({key: csv_cell(v) if isinstance(v, str) else v for key, v in texts.items()})
    return buffer.getvalue()


def from_csv(text: str) -> list[dict[str, str]]:
    """The records of a CSV file of ours, all values as text."""
    return [{key: csv_text(cell) for key, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]


def as_json(value: Any) -> str:
    """Indented JSON with its line end; what is not finite is null."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
