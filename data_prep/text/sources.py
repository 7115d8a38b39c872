"""Sources of text: text files, JSON lines, Parquet and streamed hub data sets, read a piece at a time.

Every part of a source yields units: the lines of a text file, the records of the others. What a file is read as follows
from its content, unless its name or the user says so. Text may be compressed. The first bytes of every file are looked
at as soon as it is found: most of what cannot be read is told before a long pass over the others.
"""

import codecs
import csv
import itertools
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.data_prep.files import files_below, sha256_of_file
from longmix.data_prep.parquet_columns import TEXT, read_rows
from longmix.data_prep.split_names import TRAIN, find_splits
from longmix.data_prep.text import unpacking
from longmix.kernels.common.safe_files import open_input

HUB_PREFIX = "hub:"
HUB_FORM = "hub:NAME[@CONFIGURATION][:SPLIT[:COLUMN]]"
LONGEST_LINE = 1 << 28  # bytes: a line is held in memory, several times over
TEXT_FORMAT, JSON_LINES_FORMAT, PARQUET_FORMAT = "text", "json-lines", "parquet"
CSV_FORMAT, TSV_FORMAT = "csv", "tsv"
FORMATS = (TEXT_FORMAT, JSON_LINES_FORMAT, PARQUET_FORMAT, CSV_FORMAT, TSV_FORMAT)
_OF_NAMES = {
    ".jsonl": JSON_LINES_FORMAT,
    ".ndjson": JSON_LINES_FORMAT,
    ".json": JSON_LINES_FORMAT,
    ".parquet": PARQUET_FORMAT,
    ".csv": CSV_FORMAT,
    ".tsv": TSV_FORMAT,
}
CSV, TSV = "CSV", "TSV"
_EXPECTED = "expected one JSON object a line"
_PARQUET = b"PAR1"
_ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\x1f\x9d": "compressed with compress",
}
_TAR, _TAR_PLACE = b"ustar", 257
_HEAD_BYTES = 4096
_PROBE_LINES = 3  # so many lines that are JSON objects make a file one of JSON lines
_PARQUET_BATCH = 256
_SHOWN_FILES = 4
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
        """Whether the file has no byte: it then holds no text, whatever its name says."""
        return self.path.stat().st_size == 0

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


# -----------------------------------------------------------------------------
# From the names that a user gives to files and data sets.


Part = TextFile | JsonLines | TableFile | ParquetFile | HubDataset


@dataclass(frozen=True)
class Source:
    """One `--source`, or another `option`, as the user named it, and what it holds, in a fixed order."""

    name: str
    parts: tuple[Part, ...]
    option: str = "--source"

    def __str__(self) -> str:
        return f"{self.option} {self.name}"


def find_sources(
    names: list[str],
    column: str = "text",
    output: str | Path | None = None,
    option: str = "--source",
    file_format: str | None = None,
) -> list[Source]:
    """The sources behind the values of `option`: files, folders (all files below, sorted), hub data sets.

    `file_format` is what all files are read as, one of FORMATS; None: each as its name and content tell.

    Raises `UserError` if one is missing, holds no file, or holds the splits of a data set, if two overlap, or if
    `output` lies in one of them.
    """
    if not names:
        raise UserError(f"no {option} given: name a text file, a folder, a .jsonl or .parquet file, or {HUB_FORM}")
    sources = [_find_source(name, column, option, file_format) for name in names]
    refuse_overlap(sources, output)
    return sources


def refuse_overlap(sources: list[Source], output: str | Path | None = None) -> None:
    """Raise `UserError` if two of the sources overlap, or if `output` lies in one of them."""
    owners: dict[Any, Source] = {}
    for source in sources:
        for part in source.parts:
            key = part if isinstance(part, HubDataset) else os.path.realpath(part.path)
            if key in owners:
                other = owners[key]
                is_hub = isinstance(part, HubDataset)
                if other.option == source.option and (is_hub or other.name == source.name):
                    raise UserError(f"{source} is given twice: name every text once")
                what = f"{HUB_PREFIX}{part.name}, split {part.split!r}" if is_hub else part.path
                raise UserError(f"{source} and {other} both hold {what}: name it once")
            owners[key] = source
        if output is not None and Path(source.name).is_dir():
            inside = Path(os.path.realpath(output)).is_relative_to(os.path.realpath(source.name))
            if inside and not source.name.startswith(HUB_PREFIX):
                raise UserError(f"--output {output} lies inside {source}: choose a folder outside it")


def _find_source(name: str, column: str, option: str, file_format: str | None) -> Source:
    if name.startswith(HUB_PREFIX):
        return Source(name, (_parse_hub(name, column, option),), option)
    path = Path(name)
    if path.is_file():
        return Source(name, (_file_part(path, column, file_format),), option)
    if not path.exists():
        raise UserError(f"{option} {name} does not exist; for a hub data set write {HUB_FORM}")
    if not path.is_dir():
        raise UserError(
            f"{option} {name} is not a regular file (only those can be read twice): save its text to a file"
        )
    try:
        files = [item for item in files_below(path) if not _is_hidden(item.relative_to(path))]
    except OSError as error:
        raise refused(f"{error.filename} cannot be read", error) from None
    if not files:
        raise UserError(f"{option} {name} is a folder without files")
    files.sort(key=lambda item: item.relative_to(path).as_posix())
    _refuse_splits(path, files, option)
    return Source(name, tuple(_file_part(item, column, file_format) for item in files), option)


def _refuse_splits(folder: Path, files: list[Path], option: str) -> None:
    """Raise `UserError` if a folder holds the splits of a data set: pooled, the test split would be trained on."""
    splits = find_splits(folder, files)
    if not splits:
        return
    wanted = {TRAIN: option}
    if option == "--source":
        wanted |= {split: f"--{split}" for split in splits if split != TRAIN}
    elif option.removeprefix("--") in splits:
        wanted = {option.removeprefix("--"): option}
    parts = []
    for split, name in wanted.items():
        parts += [f"{name} {shlex.quote(str(path))}" for path in splits[split][:_SHOWN_FILES]]
        if len(splits[split]) > _SHOWN_FILES:
            parts.append(f"(and {len(splits[split]) - _SHOWN_FILES} more)")
    names = ", ".join(paths[0].name for paths in splits.values())
    named = {path for paths in splits.values() for path in paths}
    others = sum(named.isdisjoint((file, *file.parents)) for file in files)
    if others:
        parts.append(f"(and {others} other file{'s' if others > 1 else ''}, if wanted)")
    raise UserError(
        f"{option} {folder} holds the splits of a data set ({names}), which would be pooled: use {' '.join(parts)}"
    )


def _file_part(path: Path, column: str, file_format: str | None) -> Part:
    with unpacking.opened(path) as (stream, compression):
        head = stream.read(_HEAD_BYTES)
    # A name tells what is in a file before it is compressed.
    name = path.stem if compression and path.suffix.lower() in unpacking.ENDINGS else path.name
    known = file_format or _OF_NAMES.get(Path(name).suffix.lower())
    found = known or _format_of_content(path)
    if found == PARQUET_FORMAT:
        _check_parquet(path, head, compression)
    else:
        _check_text(path, head)
    about = {"by_content": known is None and found != TEXT_FORMAT, "compressed": compression is not None}
    if found == JSON_LINES_FORMAT:
        return JsonLines(path, column, **about)
    if found == PARQUET_FORMAT:
        return ParquetFile(path, column, **about)
    if found in (CSV_FORMAT, TSV_FORMAT):
        return TableFile(path, column, CSV if found == CSV_FORMAT else TSV, **about)
    return TextFile(path, **about)


def _check_text(path: Path, head: bytes) -> None:
    """Raise `UserError` if the first bytes of a file's text are those of something else."""
    what = next((what for sign, what in _ARCHIVES.items() if head.startswith(sign)), None)
    if head[_TAR_PLACE:].startswith(_TAR) and b"\0" in head[:_TAR_PLACE]:
        what = "a tar archive"
    if what is not None:
        raise UserError(f"{path} is {what}: unpack it first")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < _HEAD_BYTES)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, head[error.start], error.start, head.count(b"\n", 0, error.start) + 1) from None


def _check_parquet(path: Path, head: bytes, compression: str | None) -> None:
    """Raise `UserError` if a file's first bytes, or its last, are not those of Parquet; an empty one has none."""
    if compression is not None:
        raise UserError(f"{path} is Parquet compressed with {compression}: unpack it first")
    if not head:
        return
    try:
        with open_input(path) as stream:
            stream.seek(-min(len(_PARQUET), len(head)), os.SEEK_END)
            tail = stream.read()
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None
    if not head.startswith(_PARQUET) or tail != _PARQUET:
        where = "end" if head.startswith(_PARQUET) else "begin"
        raise UserError(f"{path} cannot be read as Parquet: it does not {where} with {_PARQUET.decode()}")


def _format_of_content(path: Path) -> str:
    """Parquet by its first bytes, JSON lines by the first lines, if all are objects; else text."""
    objects = 0
    with unpacking.opened(path) as (stream, _):
        for raw in iter(lambda: stream.readline(LONGEST_LINE + 1), b""):
            if not objects and raw.startswith(_PARQUET):
                return PARQUET_FORMAT
            line = raw.removeprefix(b"\xef\xbb\xbf").strip()
            if not line:
                continue
            if not line.startswith(b"{") or not _is_object(line):
                return TEXT_FORMAT
            objects += 1
            if objects == _PROBE_LINES:
                break
    return JSON_LINES_FORMAT if objects else TEXT_FORMAT


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _parse_hub(source: str, column: str, option: str) -> HubDataset:
    if "[" in source:
        raise UserError(f"{option} {source}: slices of a split are not supported; name a whole split, {HUB_FORM}")
    fields = source.removeprefix(HUB_PREFIX).split(":")
    if len(fields) > 3 or not all(fields):
        raise UserError(f"{option} {source} is not of the form {HUB_FORM}")
    name, _, configuration = fields[0].partition("@")
    split = fields[1] if len(fields) > 1 else "train"
    return HubDataset(name, configuration or None, split, fields[2] if len(fields) > 2 else column)


# -----------------------------------------------------------------------------
# Values from outside: checked where they are read.


def _decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a UTF-8 file, compressed or not."""
    offset = 0
    with unpacking.opened(path) as (stream, _):
        for number, raw in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
            if len(raw) > LONGEST_LINE:
                raise UserError(
                    f"{path}, line {number} is longer than {LONGEST_LINE:,} bytes: cut it into lines, "
                    f"{unpacking.LEAVE_OUT}"
                )
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, raw[error.start], offset + error.start, number) from None
            if number == 1:
                line = line.removeprefix("\ufeff")
            offset += len(raw)
            yield number, line.rstrip("\r\n")


def _not_utf8(path: Path, byte: int, offset: int, line: int) -> UserError:
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
