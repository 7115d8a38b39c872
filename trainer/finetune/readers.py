"""GLUE's files as they are: raw tab-separated text and the hub's Parquet tables.

In GLUE's TSV files a double quote is a letter like any other: no CSV rule applies. A byte order mark is dropped at the
start of the file and kept everywhere else. A carriage return is dropped at the end of a line when the file's first
line ends in CR LF, and is text otherwise. Blank lines at the end are ignored. A row whose number of fields differs
from the header's is an error that names the file and the line, except in tasks that are known for such rows
(`Task.skip_defective_rows`): there it is skipped and counted, but never in a test file, where every row needs its
prediction.
"""

import codecs
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.parquet_columns import NUMBER, TEXT, WHOLE_NUMBER, check_columns, values_of
from longmix.data_prep.text import unpacking

from .tasks import HUB_LABEL, Task

SHOWN_LABELS, SHOWN_LETTERS = 10, 40
_LARGEST_FILE = 2**31
LARGEST_VALUE = float(np.finfo(np.float32).max)
ADVICE = "take the task's own files"


# -----------------------------------------------------------------------------
# Examples in memory: the largest of the tasks have a few hundred thousand sentences.


@dataclass
class Examples:
    """Sentences, or sentence pairs, of one split, column by column. `second` is None for single sentences, `labels`
    for test files.
    """

    first: list[str]
    second: list[str] | None
    labels: list[int] | list[float] | None
    indices: list[str]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.first)

    def without_text(self) -> int:
        """How many have nothing but white space."""
        seconds = self.second or [""] * len(self.first)
        return sum(not first.strip() and not second.strip() for first, second in zip(self.first, seconds, strict=True))

    def select(self, positions: Sequence[int]) -> "Examples":
        """The examples at these positions, in their order."""
        return Examples(
            first=[self.first[i] for i in positions],
            second=None if self.second is None else [self.second[i] for i in positions],
            labels=None if self.labels is None else [self.labels[i] for i in positions],
            indices=[self.indices[i] for i in positions],
        )


def class_counts(examples: Examples, names: Sequence[str]) -> str:
    """A line with the classes, the most frequent first, and how many examples each has."""
    counts = Counter(examples.labels).most_common()
    shown = [f"{_short(names[label])} {count:,}" for label, count in counts[:SHOWN_LABELS]]
    more = f", ... and {_short(names[counts[-1][0]])} {counts[-1][1]:,}" if len(counts) > SHOWN_LABELS else ""
    return f"{len(counts):,} classes: {', '.join(shown)}{more}"


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_LETTERS else f"{name[:SHOWN_LETTERS]}..."


# -----------------------------------------------------------------------------
# TSV files. GLUE's are no CSV: quotes and odd separators are text, and every refusal names the line.


def read_lines(path: Path) -> list[str]:
    """Lines of a UTF-8 file, compressed or not, split at line feeds alone (a text may hold U+2028 and its like).

    Raises UserError when the file cannot be read, is too large, or holds bytes that are not UTF-8.
    """
    with unpacking.opened(path, "get it anew") as (stream, _):
        content = stream.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise UserError(f"{path} has more than {_LARGEST_FILE:,} bytes of text: cut it into several files")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        others = "its own encoding (latin1 in Western Europe, gb18030 in China, shift_jis in Japan)"
        raise UserError(
            f"{path}, line {line}: not UTF-8; convert it, e.g. with iconv, from {'utf-16' if is_utf16 else others}"
        ) from error
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].endswith("\r"):
        lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: the file is empty")
    return lines


def _rows(
    path: Path, lines: list[str], columns: Sequence[str], first_line: int, skip_defective: bool
) -> Iterator[tuple[int, list[str] | None]]:
    """(line number, fields) of each row; fields are None for a defective row that may be skipped."""
    for number, line in enumerate(lines, start=first_line):
        fields = line.split("\t")
        if len(fields) == len(columns):
            yield number, fields
        elif skip_defective:
            yield number, None
        else:
            raise UserError(
                f"{path}, line {number}: {len(fields)} tab-separated fields, "
                f"expected {len(columns)} ({', '.join(columns)})"
            )


def parse_label(task: Task, text: str, where: str) -> int | float:
    """Class index, or value for regression. Raises UserError with the place and the allowed labels."""
    if task.regression:
        try:
            value = float(text) if "_" not in text else math.nan  # Python's 1_000 is no number elsewhere
        except ValueError:
            value = math.nan
        _check_value(value, task, where, shown=text)
        return value
    try:
        return task.file_labels.index(text)
    except ValueError:
        more = f", ... ({len(task.file_labels)} in all)" if len(task.file_labels) > SHOWN_LABELS else ""
        unknown = ", which is not among the training labels" if task.custom else ""
        advice = "; if labels are numbers, give --regression" if task.custom and is_number(text) else ""
        raise UserError(
            f"{where}: {task.label_column} is {text!r}{unknown}, expected one of: "
            f"{', '.join(task.file_labels[:SHOWN_LABELS])}{more}{advice}"
        ) from None


def is_number(text: str) -> bool:
    """Whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_value(value: float, task: Task, where: str, shown: object = None) -> None:
    """Raise UserError unless a value to learn is a number that float32 has, as the data sets keep it."""
    if not abs(value) <= LARGEST_VALUE:
        is_large = not math.isnan(value)
        size = f" of at most {LARGEST_VALUE:.2g} in size" if is_large else ""
        advice = "" if is_large or not task.custom else "; if labels are classes, leave --regression out"
        found = value if shown is None else shown
        raise UserError(f"{where}: {task.label_column} is {found!r}, expected a number{size}{advice}")


def _column(path: Path, columns: Sequence[str], name: str) -> int:
    if columns.count(name) != 1:
        what = "more than one" if name in columns else "no"
        raise UserError(f"{path}: {what} column {name!r} in its header; it has: {', '.join(columns)}")
    return columns.index(name)


def read_tsv(path: Path, task: Task, *, test: bool = False) -> Examples:
    """One TSV file of a task; a `test` file has no labels and, in GLUE, always a header.

    Raises UserError (file, line, what is wrong).
    """
    lines = read_lines(path)
    if task.headerless_columns and not test:
        columns, body, first_line = list(task.headerless_columns), lines, 1
    else:
        columns, body, first_line = lines[0].split("\t"), lines[1:], 2
    texts = [_column(path, columns, name) for name in task.text_columns]
    label = None if test else _column(path, columns, task.label_column)
    index = columns.index(task.index_column) if test and task.index_column in columns else None
    first, second, labels, indices, skipped = [], [], [], [], 0
    for number, fields in _rows(path, body, columns, first_line, task.skip_defective_rows and not test):
        if fields is None:
            skipped += 1
            continue
        first.append(fields[texts[0]])
        if len(texts) == 2:
            second.append(fields[texts[1]])
        if label is not None:
            labels.append(parse_label(task, fields[label], f"{path}, line {number}"))
        indices.append(fields[index] if index is not None else str(len(indices)))
    if not first:
        raise UserError(f"{path}: no rows below the header")
    return Examples(first, second if len(texts) == 2 else None, None if test else labels, indices, skipped)


# -----------------------------------------------------------------------------
# Parquet tables of the hub, where labels are class indices already.


def hub_columns(task: Task, *, test: bool = False) -> dict[str, str]:
    """The columns that a split in the hub's layout must have, and their types."""
    label = {} if test else {HUB_LABEL: NUMBER if task.regression else WHOLE_NUMBER}
    return dict.fromkeys(task.hub_text_columns, TEXT) | label


def read_table(table, task: Task, where: str, *, test: bool = False) -> Examples:
    """A split in the hub's layout: a pyarrow Table with the text columns, `label` (class index, or value; -1 in test)
    and perhaps `idx`.

    Rows of a training or dev split with a missing text, a missing label or with label -1 are skipped and counted.
    Raises UserError on a missing column or one of another type, and, with the row (the first is 0), on a label that the
    task does not have or that is no finite number.
    """
    wanted = hub_columns(task, test=test)
    wanted |= {"idx": WHOLE_NUMBER} if "idx" in table.column_names else {}
    check_columns(table.schema, wanted, where, ADVICE)
    values = {name: values_of(table.column(name), name, where, 0) for name in wanted}
    texts = [values[name] for name in task.hub_text_columns]
    raw_indices = values.get("idx", range(table.num_rows))
    kept, labels = [], []
    for row in range(table.num_rows):
        missing = any(column[row] is None for column in texts)
        if test:
            if missing or raw_indices[row] is None:
                what = "a text" if missing else "its idx"
                raise UserError(f"{where}, row {row}: {what} is missing; every test row needs a prediction")
            kept.append(row)
            continue
        label = values[HUB_LABEL][row]
        if missing or label is None or (not task.regression and label == -1):
            continue
        if task.regression:
            _check_value(label, task, f"{where}, row {row}")
        elif label not in range(task.num_labels):
            raise UserError(f"{where}, row {row}: label is {label!r}, expected 0 to {task.num_labels - 1}")
        kept.append(row)
        labels.append(float(label) if task.regression else label)
    if not kept:
        raise UserError(f"{where}: no labelled rows" if not test else f"{where}: no rows")
    return Examples(
        first=[texts[0][row] for row in kept],
        second=[texts[1][row] for row in kept] if len(texts) == 2 else None,
        labels=None if test else labels,
        indices=[str(raw_indices[row]) for row in kept],
        skipped=table.num_rows - len(kept),
    )
