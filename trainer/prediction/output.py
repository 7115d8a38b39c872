"""The output of predictions: TSV, CSV, JSON lines or Parquet, by its suffix; joined from parts."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.made_files import put_file, refuse_foreign_files

from ..tables.text import csv_cell, csv_content
from .parts import JOINED, Answers, parts_folder, read_part

SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


def check_output(output: str) -> Path:
    """The path of an output that can be written. Raises UserError for another suffix, or a file of somebody else."""
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output is {output}, but its suffix must be one of {', '.join(SUFFIXES)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(f"--output {output}: its folder cannot be made", error) from None
    refuse_foreign_files(path.parent, [path.name], _is_earlier)
    return path


def join(parts: Iterable[Path], columns: dict[str, type], output: Path) -> None:
    """Write the answers of all parts, in their order, as one file."""
    made = parts_folder(output) / JOINED
    _WRITERS[output.suffix]((read_part(path) for path in parts), columns, made)
    put_file(made, output, _is_earlier)


def _is_earlier(path: Path) -> bool:
    """No version without a record of its files has written predictions."""
    return False


# -----------------------------------------------------------------------------
# The formats. Numbers are written as they are; lists have spaces between their entries in TSV and CSV.


def _write_tsv(parts: Iterable[Answers], columns: dict[str, type], path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines("\t".join(cells) + "\n" for cells in _lines(parts, columns))


def _write_csv(parts: Iterable[Answers], columns: dict[str, type], path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(_lines(parts, columns))


def _lines(parts: Iterable[Answers], columns: dict[str, type]) -> Iterator[list[str]]:
    yield [csv_cell(name) for name in columns]
    for part in parts:
        yield from ([_cell(answer[name]) for name in columns] for answer in part)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(entry, float) for entry in value):
        return " ".join(map(str, value))  # numbers, though a spreadsheet might take the first sign for a formula's
    return csv_content(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def _write_json_lines(parts: Iterable[Answers], columns: dict[str, type], path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        for part in parts:
            file.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in part)


def _write_parquet(parts: Iterable[Answers], columns: dict[str, type], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        list[str]: pa.list_(pa.string()),
        list[float]: pa.list_(pa.float32()),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    with pq.ParquetWriter(path.absolute(), schema) as writer:
        for part in parts:
            writer.write_table(pa.Table.from_pylist(part, schema=schema))


_WRITERS = {".tsv": _write_tsv, ".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
