"""Sources of text, found by the names that a user gives to files, folders and hub data sets.

What a file is read as follows from its content, unless its name or the user says so. The first bytes of every file are
looked at as soon as it is found: most of what cannot be read is told before a long pass over the others.
"""

import codecs
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import files_below
from longmix.data_prep.split_names import TRAIN, find_splits
from longmix.data_prep.text import unpacking
from longmix.data_prep.text.parts import (
    CSV,
    HUB_PREFIX,
    LONGEST_LINE,
    TEXT_FORMAT,
    TSV,
    HubDataset,
    JsonLines,
    ParquetFile,
    Part,
    TableFile,
    TextFile,
    not_utf8,
)
from longmix.kernels.common.safe_files import open_input

HUB_FORM = "hub:NAME[@CONFIGURATION][:SPLIT[:COLUMN]]"
JSON_LINES_FORMAT, PARQUET_FORMAT, CSV_FORMAT, TSV_FORMAT = "json-lines", "parquet", "csv", "tsv"
FORMATS = (TEXT_FORMAT, JSON_LINES_FORMAT, PARQUET_FORMAT, CSV_FORMAT, TSV_FORMAT)
_OF_NAMES = {
    ".jsonl": JSON_LINES_FORMAT,
    ".ndjson": JSON_LINES_FORMAT,
    ".json": JSON_LINES_FORMAT,
    ".parquet": PARQUET_FORMAT,
    ".csv": CSV_FORMAT,
    ".tsv": TSV_FORMAT,
}
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
_SHOWN_FILES = 4


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
    name = unpacking.unpacked_name(path) if compression else path
    known = file_format or _OF_NAMES.get(name.suffix.lower())
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
        raise not_utf8(path, head[error.start], error.start, head.count(b"\n", 0, error.start) + 1) from None


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
