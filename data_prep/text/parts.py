"""The parts of a source of text: text files, JSON lines, tables, Parquet and streamed hub data sets, read a piece at a
time.

Every part yields units: the lines of a text file, the records of the others. Text may be compressed.
"""

import csv
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.parquet_columns import TEXT, read_rows
from longmix.data_prep.text import unpacking

HUB_PREFIX = "hub:"
LONGEST_LINE = 1 << 28  # bytes: a line is held in memory, several times over
TEXT_FORMAT = "text"
CSV, TSV = "CSV", "TSV"
_EXPECTED = "expected one JSON object a line"
_PARQUET_BATCH = 256
_PIECE_BYTES = 1 << 20
_ADVICE = "name one with --column"
_AS_TEXT = f"--format {TEXT_FORMAT} reads the file as plain text"


@dataclass(frozen=True)
class _File:
    """The base of all kinds of files: a path, and what tells whether its contents are still the same.

    `by_content`: the file's first bytes tell its kind, its name does not. `compressed`: they are not those of its text.
    """

    path: Path
    by_content: bool = field(default=False, kw_only=True)
    compressed: bool = field(default=False, kw_only=True)

    def is_empty(self) -> bool:
        """Whether the file has no byte, unpacked: it then holds no text, whatever its name says."""
        if not self.compressed:
            return self.path.stat().st_size == 0
        with unpacking.opened(self.path) as (stream, _):
            return not stream.read(1)

    def fingerprint(self) -> list[Any]:
        """Name and contents: a file that was copied or touched is still the same.

        The kind stands there too where the content told it: an older longmix read such a file as plain text.
        """
        try:
            known = [self.path.name, sha256_of_file(self.path)]
        except OSError as error:
            raise refused(f"{self.path} cannot be read", error) from None
        return [*known, self.kind] if self.by_content else known


@dataclass(frozen=True)
class TextFile(_File):
    """UTF-8 text; its units are lines without their ends. A byte order mark at the start is left out."""

    kind = "plain text"
    is_records = False

    def units(self) -> Iterator[str]:
        """Raises `UserError` with the byte offset of the first byte that is not UTF-8."""
        for _, line in _decoded_lines(self.path):
            yield line


@dataclass(frozen=True)
class JsonLines(_File):
    """One JSON object a line, the text under the key `column`."""

    column: str
    kind = "JSON lines"
    is_records = True

    def units(self) -> Iterator[str]:
        """Raises `UserError` with file and line for a line that is no object or lacks the column."""
        for number, line in _decoded_lines(self.path):
            if not line.strip():
                continue
            place = f"{self.path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{place}: not JSON ({error}); {_EXPECTED} ({_advice(line)})") from None
            if not isinstance(record, dict):
                raise UserError(f"{place}: {_EXPECTED}, found {type(record).__name__} ({_advice(line)})")
            yield _text_of(record, self.column, place, f"{_ADVICE} ({_AS_TEXT})" if self.by_content else _ADVICE)


def _advice(line: str) -> str:
    """What to do with a line that is no object: many files are one array."""
    return "write the entries of the array so, e.g. with jq -c '.[]'" if line.lstrip().startswith("[") else _AS_TEXT


@dataclass(frozen=True)
class TableFile(_File):
    """CSV or TSV, with the names of its columns in the first line and the text in `column`.

    TSV knows no quotes. Of CSV `;` stands between the fields where the first line has no comma.
    """

    column: str
    kind: str

    is_records = True

    def fingerprint(self) -> list[Any]:
        """An older longmix read every table as plain text: what it made is of another source."""
        return [*super().fingerprint(), self.kind]

    def units(self) -> Iterator[str]:
        """Raises `UserError` with file and line for a row that does not fit the header, which must have the column."""
        if self.is_empty():
            return
        lines = _decoded_lines(self.path)
        _, first = next(lines, (1, ""))
        rows = self._rows(first, (line for _, line in lines))
        header = next(rows, (1, []))[1]
        if header.count(self.column) != 1:
            advice = f"{_ADVICE} ({_AS_TEXT})"
            raise UserError(_missing_column(f"{self.path}, line 1", self.column, header, advice))
        place = header.index(self.column)
        for number, fields in rows:
            if len(fields) == len(header):
                yield fields[place]
            elif fields not in ([], [""]):
                raise UserError(
                    f"{self.path}, line {number}: {len(fields)} fields, the first line has {len(header)} ({_AS_TEXT})"
                )

    def _rows(self, first: str, rest: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of each row."""
        if self.kind == TSV:
            yield from enumerate((line.split("\t") for line in itertools.chain([first], rest)), start=1)
            return
        csv.field_size_limit(LONGEST_LINE)
        delimiter = ";" if ";" in first and "," not in first else ","
        reader = csv.reader((f"{line}\n" for line in itertools.chain([first], rest)), delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                yield reader.line_num, fields
        except csv.Error as error:
            raise UserError(f"{self.path}, line {reader.line_num}: no CSV ({error}; {_AS_TEXT})") from None


@dataclass(frozen=True)
class ParquetFile(_File):
    """A Parquet file, the text in the string column `column`; read in small batches."""

    column: str
    kind = "Parquet"
    is_records = True

    def units(self) -> Iterator[str]:
        """Raises `UserError` if the file is damaged or has no such column of strings. A missing text is a blank one."""
        if self.is_empty():
            return
        for _, (text,) in read_rows(self.path, {self.column: TEXT}, _ADVICE, _PARQUET_BATCH):
            yield "" if text is None else text


@dataclass(frozen=True)
class HubDataset:
    """A data set of the Hugging Face hub (or a folder in its layout), streamed: nothing is downloaded whole."""

    name: str
    configuration: str | None
    split: str
    column: str
    kind = "hub data set"
    is_records = True

    def fingerprint(self) -> list[Any]:
        return [self.name, self.configuration, self.split, self.column]

    def units(self) -> Iterator[str]:
        """Raises `UserError` if the data set, its configuration, split or column is not there or needs a script."""
        import datasets

        place = f"{HUB_PREFIX}{self.name}"
        try:
            options = {"path": self.name, "name": self.configuration, "split": self.split, "streaming": True}
            stream = datasets.load_dataset(**options)
            names = stream.column_names
            if names is None:
                names = list(next(iter(stream), {}))
            if self.column not in names:
                raise UserError(_missing_column(f"{place}, split {self.split!r}", self.column, names))
            if stream.info.builder_name == "parquet":  # then the other columns are not even fetched
                stream = datasets.load_dataset(**options, columns=[self.column])
            for number, record in enumerate(stream.select_columns([self.column]), start=1):
                yield _text_of(record, self.column, f"{place}, record {number}")
        except UserError:
            raise
        except Exception as error:  # whatever the library stumbles over comes from the data set, or the network
            raise UserError(self._explain(place, reason_of(error))) from None

    def _explain(self, place: str, message: str) -> str:
        if "script" in message:
            return (
                f"{place} is read by a script of its own, which longmix never runs: choose a Parquet or JSON data set"
            )
        if "Config name is missing" in message:
            return f"{place} has several configurations: write hub:NAME@CONFIGURATION. {message}"
        return f"{place}, split {self.split!r}, cannot be read: {message}"


Part = TextFile | JsonLines | TableFile | ParquetFile | HubDataset


# -----------------------------------------------------------------------------
# Values from outside: checked where they are read.


def _decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a UTF-8 file, compressed or not."""
    offset = 0
    with unpacking.opened(path) as (stream, compression):
        for number, raw in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
            if len(raw) > LONGEST_LINE:
                raise UserError(
                    f"{path}, line {number} is longer than {LONGEST_LINE:,} bytes: cut it into lines, "
                    f"{unpacking.LEAVE_OUT}"
                )
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                # Of a damaged archive the checksum at its end tells more.
                while compression is not None and stream.read(_PIECE_BYTES):
                    pass
                raise not_utf8(path, raw[error.start], offset + error.start, number) from None
            if number == 1:
                line = line.removeprefix("\ufeff")
            offset += len(raw)
            yield number, line.rstrip("\r\n")


def not_utf8(path: Path, byte: int, offset: int, line: int) -> UserError:
    """What is said of a byte of a file's text, at `offset` and in a line counted from 1."""
    return UserError(
        f"{path}: byte {byte:#04x} at offset {offset} (line {line}) is not UTF-8: convert the file to UTF-8, "
        f"{unpacking.LEAVE_OUT}"
    )


def _text_of(record: dict[str, Any], column: str, place: str, advice: str = _ADVICE) -> str:
    if column not in record:
        raise UserError(_missing_column(place, column, list(record), advice))
    text = record[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UserError(f"{place}: {column!r} holds {type(text).__name__}, expected text")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair, which no UTF-8 file can hold
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _missing_column(place: str, column: str, names: list[str], advice: str = _ADVICE) -> str:
    return f"{place}: there is no column {column!r}; it has {', '.join(map(repr, names))}: {advice}"
