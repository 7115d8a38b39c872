"""Tables as they come: TSV, CSV, JSON lines, Parquet, plain text, and splits of hub data sets, row by row as texts.

One reader for `finetune`, `predict` and `evaluate`. The suffix of a file says what it is. TSV is GLUE's: raw, where a
double quote is a letter like any other; CSV follows its rules, with `;` between the fields where the first line has no
comma, or tabs where such a header has none. A file without a header is read with the names that are given for its
columns. Plain text has one column, "text", a line each. All but Parquet may be compressed. Class numbers of a hub data
set become the names that it gives them.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.files import require_input
from longmix.data_prep.parquet_columns import parquet_file, values_of
from longmix.data_prep.text import unpacking

from .readers import is_number, read_lines

HUB = "hub:"
TEXT_COLUMN = "text"
_PARQUET_BATCH = 256
_SHOWN_COLUMNS = 20
_HEADERS = "where the first line is no header, name the columns with --columns"


class Row(NamedTuple):
    """The texts of the wanted columns of one row, and its place for messages. What has no value is ""."""

    texts: list[str]
    place: str


class Table(NamedTuple):
    """A table from outside: the names of its columns, and what reads some of them, every time from its beginning.

    `has_decimal_commas`: no comma stands between its fields, so that one within a number is that of its decimals.
    `count`: how many rows it has, if that is known without reading them.
    `classes`: names of the classes that numbers in a column stand for, by column, where the table has them.
    `names_given_by`: what names its columns where it does not do so itself, for a message that misses one.
    """

    source: str
    columns: list[str]
    read: Callable[[Sequence[str]], Iterator[Row]]
    has_decimal_commas: bool = False
    names_given_by: str = ""
    classes: Mapping[str, Sequence[str]] = MappingProxyType({})
    count: int | None = None

    def rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """The rows with the columns `wanted`. Raises UserError if there is no such column, or two of that name."""
        # Earlier versions noted the spaces in a header with the names.
        wanted = [name if name in self.columns else name.strip() for name in wanted]
        for name in wanted:
            if self.columns.count(name) != 1:
                what = "more than one" if name in self.columns else "no"
                held = ", ".join(self.columns[:_SHOWN_COLUMNS])
                more = ", ..." if len(self.columns) > _SHOWN_COLUMNS else ""
                advice = f"; {self.names_given_by}" if self.names_given_by else ""
                raise UserError(f"{self.source}: {what} column {name!r}; it has: {held}{more}{advice}")
        return self.read(wanted)


def open_table(source: str, columns: Sequence[str] | None = None) -> Table:
    """The table in a file, or `hub:NAME[@CONFIGURATION][:SPLIT]`.

    Args:
        columns: names of the columns of a file without a header.

    Raises:
        UserError: there is no such file, one of another kind, or one that cannot be read.
    """
    if source.startswith(HUB):
        _refuse_columns(source, columns)
        return _hub(source)
    path = Path(source)
    if not path.exists():
        raise UserError(f"{source} does not exist")
    opener = OPENERS.get(kind_of(path))
    if path.is_dir():
        raise UserError(f"{source} is a folder, and holds no manifest.json, as that of a prepared split does")
    if opener is None:
        raise UserError(f"{source} is of no known kind; these are read: {', '.join(OPENERS)}, and hub:NAME")
    if opener is _parquet and kind_of(path) != path.suffix.lower():
        raise UserError(f"{source} is compressed Parquet: unpack it first")
    return opener(path, None if columns is None else list(columns))


def file_table(source: str, columns: Sequence[str] | None, wanted: Sequence[str] | None) -> Table | None:
    """The table in a file, which must have the columns `wanted`; None for one of the hub, which is opened when torch is
    loaded. Raises UserError as `open_table`, or if there is no such column.
    """
    if source.startswith(HUB):
        return None
    table = open_table(source, columns)
    table.rows(wanted or ())
    return table


def kind_of(path: Path) -> str:
    """The suffix of a file's name, in small letters, before it was compressed."""
    return unpacking.unpacked_name(path).suffix.lower()


def joined(tables: list[Table]) -> Table:
    """Tables with the same columns as one, in their order."""

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        for table in tables:
            yield from table.rows(wanted)

    return tables[0]._replace(read=read, count=None)


# -----------------------------------------------------------------------------
# Lines of text: TSV, CSV, JSON and plain text.


def _tsv(path: Path, columns: list[str] | None) -> Table:
    first, *rest = read_lines(path)
    header = _header(first.split("\t"))
    _refuse_header(path, header, columns)
    body, start = ([first, *rest], 1) if columns is not None else (rest, 2)
    names = header if columns is None else columns
    fields = (line.split("\t") for line in body)
    numbered = list(enumerate(fields, start))
    return _of_fields(path, names, numbered, "tab-separated fields")._replace(has_decimal_commas=True)


def _csv(path: Path, columns: list[str] | None) -> Table:
    text = "\n".join(read_lines(path))
    first = text.partition("\n")[0]
    marks = ",;" if columns is not None else ",;\t"  # a first line that is no header may be text, with tabs in it
    delimiter = next((mark for mark in marks if mark in first), ",")
    # Of the whole process: others' rows must still fit.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        for fields in reader:
            rows.append((reader.line_num, fields))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None
    _refuse_header(path, next((fields for _, fields in rows if fields), []), columns)
    if columns is None:
        header = next((number for number, (_, fields) in enumerate(rows) if fields), None)
        if header is None:
            raise UserError(f"{path}: the file is empty")
        columns, rows = _header(rows[header][1]), rows[header + 1 :]
    # A blank line is an empty text where there is one column, as in TSV; of several it holds none.
    blank = [""] if len(columns) == 1 else []
    rows = [(number, fields or blank) for number, fields in rows if fields or blank]
    table = _of_fields(path, columns, rows, f"fields between {delimiter!r}")
    return table._replace(has_decimal_commas=delimiter != ",")


def _header(fields: list[str]) -> list[str]:
    """The names of columns, without the spaces of `date, value`, where they differ in more than these."""
    names = [field.strip() for field in fields]
    return names if len(set(names)) == len(set(fields)) else fields


def _of_fields(path: Path, names: list[str], rows: list[tuple[int, list[str]]], what: str) -> Table:
    for number, fields in rows:
        if len(fields) != len(names):
            raise UserError(f"{path}, line {number}: {len(fields)} {what}, expected {len(names)} ({', '.join(names)})")

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        places = [names.index(name) for name in wanted]
        for number, fields in rows:
            yield Row([fields[place] for place in places], f"{path}, line {number}")

    return Table(str(path), names, read, names_given_by=_HEADERS, count=len(rows))


def _json(path: Path, columns: list[str] | None) -> Table:
    _refuse_columns(str(path), columns)
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON ({error}); expected one JSON object a line") from None
        if not isinstance(record, dict):
            raise UserError(f"{place}: expected one JSON object a line, found {type(record).__name__}")
        rows.append((place, record))

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        for place, record in rows:
            missing = next((name for name in wanted if name not in record), None)
            if missing is not None:
                raise UserError(f"{place}: there is no {missing!r}; it has: {', '.join(record)}")
        return (Row([_text(record[name], name, place) for name in wanted], place) for place, record in rows)

    return Table(str(path), list(rows[0][1]) if rows else [], read, count=len(rows))


def _plain(path: Path, columns: list[str] | None) -> Table:
    if columns is not None and len(columns) != 1:
        raise UserError(f"--columns: {path} is plain text, with one column")
    names = columns or [TEXT_COLUMN]
    rows = [(number, [line]) for number, line in enumerate(read_lines(path), 1)]
    return _of_fields(path, names, rows, "texts")._replace(names_given_by="--columns gives it another name")


# -----------------------------------------------------------------------------
# Parquet and the hub, where values have types.


def _parquet(path: Path, columns: list[str] | None) -> Table:
    import pyarrow as pa

    _refuse_columns(str(path), columns)
    require_input(path)

    def failing(error: Exception) -> UserError:
        return UserError(f"{path} cannot be read as Parquet: {reason_of(error)}")

    try:
        with parquet_file(path) as file:
            names, metadata = file.schema_arrow.names, file.schema_arrow.metadata or {}
            count = file.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise failing(error) from None
    classes = _class_names(metadata)

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        number = 0
        try:
            with parquet_file(path) as file:
                for batch in file.iter_batches(batch_size=_PARQUET_BATCH, columns=list(wanted)):
                    held = [values_of(batch.column(name), name, str(path), number + 1) for name in wanted]
                    for values in zip(*held, strict=True):
                        number += 1
                        place = f"{path}, row {number}"
                        pairs = zip(values, wanted, strict=True)
                        yield Row([_text(_named(value, classes.get(n)), n, place) for value, n in pairs], place)
        except (pa.ArrowException, OSError, OverflowError) as error:
            raise failing(error) from None

    return Table(str(path), names, read, classes=classes, count=count)


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """The names of classes that the datasets library leaves in a Parquet file, by column."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        classes = {name: one["names"] for name, one in features.items() if one.get("_type") == "ClassLabel"}
        return {name: names for name, names in classes.items() if isinstance(names, list)}
    except (KeyError, ValueError, AttributeError, TypeError):
        return {}


def _hub(source: str) -> Table:
    name, _, split = source.removeprefix(HUB).partition(":")
    dataset = hub_splits(f"{HUB}{name}").get(split or "train")
    if dataset is None:
        raise UserError(f"{source}: there is no split {split or 'train'!r}; write hub:NAME:SPLIT")
    return hub_table(dataset, source)


def hub_splits(source: str) -> dict[str, Any]:
    """The splits of `hub:NAME[@CONFIGURATION]`, as data sets of the datasets library. Raises UserError."""
    import datasets

    name, _, configuration = source.removeprefix(HUB).partition("@")
    try:
        return dict(datasets.load_dataset(name, configuration or None))
    except Exception as error:  # not found, no network, a layout or values that datasets does not take
        reason = reason_of(error)
        raise UserError(f"{source}: cannot be loaded ({reason}); check the name and the network") from None


def hub_table(dataset: Any, source: str) -> Table:
    """A split of the datasets library as a table."""
    features = dataset.features.items()
    classes = {name: feature.names for name, feature in features if getattr(feature, "names", None)}

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        for number, record in enumerate(dataset.select_columns(list(wanted)), start=1):
            place = f"{source}, row {number}"
            yield Row([_text(_named(record[name], classes.get(name)), name, place) for name in wanted], place)

    return Table(source, list(dataset.column_names), read, classes=classes, count=len(dataset))


def _named(value: Any, names: list[str] | None) -> Any:
    """A class number as its name; -1, which stands for none, is no value."""
    if not names or not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def _text(value: Any, name: str, place: str) -> str:
    """A value as a file of texts would hold it."""
    if value is None or value != value:  # NaN is pandas' word for none
        return ""
    if isinstance(value, str):
        # JSON can spell half a surrogate pair, which no UTF-8 file can hold.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal | date | time):
        return str(value)
    several = " (tasks with several labels, or with lists of tokens, are not supported)"
    several = several if isinstance(value, list) else ""
    raise UserError(f"{place}: {name!r} holds {type(value).__name__}, expected a text, a number or a date{several}")


def _refuse_columns(source: str, columns: Sequence[str] | None) -> None:
    if columns is not None:
        raise UserError(f"--columns is for files without a header, and {source} names its columns itself")


def _refuse_header(path: Path, first: list[str], columns: list[str] | None) -> None:
    """Raise UserError if the first line seems to be a header, perhaps with other names than `columns`, which are given
    in place of one: it is no row. Of a single column it might be a text. One name alone may be a class, too: beside it
    stand short names then, and no text.
    """
    if columns is None or len(first) != len(columns):
        return
    cells = [cell.strip() for cell in first]
    pairs = [(cell, name) for cell, name in zip(cells, columns, strict=True) if not is_number(cell)]
    alike = sum(cell.casefold() == name.casefold() for cell, name in pairs)
    is_one = len(columns) > 1 and any(cell == name for cell, name in pairs)
    if first == columns or alike > 1 or (is_one and all(len(cell.split()) <= 2 for cell in cells)):
        raise UserError(
            f"{path}: its first line seems to be a header ({', '.join(first)}): leave --columns out, or the line if it "
            "is to have other names; if it is a row, give other --columns"
        )


OPENERS: dict[str, Callable[[Path, list[str] | None], Table]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".parquet": _parquet,
    ".txt": _plain,
}
