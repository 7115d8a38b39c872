"""The values that a manifest's fields may have: it may be damaged, edited by hand, or made to mislead."""

import itertools
import re
import reprlib
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

LARGEST_COUNT = 2**62
LARGEST_SIZE = 2**31 - 1
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "float64")
_MOST_UNNAMED_LABELS = 2**20
# Samples that are read together, at most; and the fewest bytes that a Parquet file takes to name a row group.
LARGEST_ROW_GROUP = 1024
_SMALLEST_ROW_GROUP_BYTES = 16
# A shard's name is joined to the folder: nothing in it may lead elsewhere.
_FILE_NAME = re.compile(r"\w[\w.=+-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHARD_FIELDS = ("file", "samples", "bytes", "sha256")
_SERIES_FIELDS = ("names", "mean", "scale", "lookback", "season")
# The label of a position that has none, as in transformers.
IGNORED = -100
# How text fills samples: with as many documents as fit, or (a piece of) one each.
DOCUMENTS, ONE_PER_ROW = "documents", "one-per-row"
# The column that holds time steps in place of samples.
SERIES = "series"


def first_mistake(values: dict[str, Any]) -> str | None:
    """The first mistake in the fields of a manifest, in words, or None."""
    return next(_mistakes(values), None)


def _mistakes(values: dict[str, Any]) -> Iterator[str]:
    for name in ("split", "split_rule"):
        if not isinstance(values[name], str):
            yield f"{name} is {_shown(values[name])}, but must be a text"
    if not isinstance(values.get("packing"), str | None):
        yield f"packing is {_shown(values['packing'])}, but must be a text or null"
    if not isinstance(values.get("report", {}), dict):
        yield f"report is {_shown(values['report'])}, but must be a map"
    for name, least, most in (
        ("samples", 0, LARGEST_COUNT),
        ("tokens", 0, LARGEST_COUNT),
        ("words", 0, LARGEST_COUNT),
        ("vocab_size", 1, LARGEST_SIZE),
        ("sequence_length", 1, LARGEST_SIZE),
        ("num_labels", 1, LARGEST_SIZE),
        ("trained_places", 1, LARGEST_SIZE),
    ):
        value = values.get(name)
        if value is not None and not _is_count(value, least, most):
            yield f"{name} is {_shown(value)}, but must be a whole number from {least} to {most}, or null"
    tolerance = values.get("tolerance")
    if tolerance is not None and not (_is_finite(tolerance) and tolerance > 0):
        yield f"tolerance is {_shown(tolerance)}, but must be a positive finite number, or null"
    yield from _mistakes_of_ids(values)
    yield from _mistakes_of_labels(values)
    yield from _mistakes_of_columns(values["columns"])
    places = {"dtype": "int32", "shape": [None]}
    if values.get("trained_places") is not None and values["columns"].get("label_places") != places:
        yield f"trained_places is {values['trained_places']}, but there is no column label_places that is {places}"
    yield from _mistakes_of_tokenizer(values.get("tokenizer"))
    yield from _mistakes_of_shards(values.get("shards", []), values.get("samples"))
    yield from _mistakes_of_series(values.get("series"), values)


# -----------------------------------------------------------------------------
# One function for each group of fields. They yield mistakes rather than raise: a reader is told the first.


def _mistakes_of_ids(values: dict[str, Any]) -> Iterator[str]:
    vocabulary = values.get("vocab_size") or LARGEST_SIZE
    special = values.get("special_token_ids", [])
    if not isinstance(special, list):
        yield f"special_token_ids is {_shown(special)}, but must be a list"
        return
    named = {name: values.get(name) for name in ("pad_token_id", "mask_token_id")}
    given = [(name, value) for name, value in named.items() if value is not None]
    for name, value in [*given, *(("special_token_ids", value) for value in special)]:
        if not _is_count(value, 0, vocabulary - 1):
            yield f"{name} holds {_shown(value)}, but an id of this vocabulary lies in 0 .. {vocabulary - 1}"


def _mistakes_of_labels(values: dict[str, Any]) -> Iterator[str]:
    names, count = values.get("label_names"), values.get("num_labels")
    if names is None:
        # Classes that no sample has are few: a model is given an output for each.
        most = max(_MOST_UNNAMED_LABELS, values.get("samples") or 0, values.get("tokens") or 0)
        if type(count) is int and count > most:
            yield f"num_labels is {count}, but there are no label_names, and no more than {most} samples or tokens"
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield f"label_names is {_shown(names)}, but must be a list of texts, or null"
    elif len(names) != count:
        yield f"label_names has {len(names)} names, but num_labels is {count}"


def _mistakes_of_columns(columns: Any) -> Iterator[str]:
    if not isinstance(columns, dict) or not columns:
        yield f"columns is {_shown(columns)}, but must be a map of column names"
        return
    for name, column in columns.items():
        if not isinstance(column, dict) or set(column) != {"dtype", "shape"}:
            yield f"columns.{_shown(name)} is {_shown(column)}, but must be a map with dtype and shape"
        elif column["dtype"] not in DTYPES:
            yield f"columns.{_shown(name)}.dtype is {_shown(column['dtype'])}, allowed: {', '.join(DTYPES)}"
        elif not isinstance(column["shape"], list) or not all(
            size is None or _is_count(size, 1, LARGEST_SIZE) for size in column["shape"]
        ):
            yield f"columns.{_shown(name)}.shape is {_shown(column['shape'])}, but must be a list of sizes and nulls"


def _mistakes_of_tokenizer(tokenizer: Any) -> Iterator[str]:
    if tokenizer is None:
        return
    if not isinstance(tokenizer, dict) or set(tokenizer) != {"path", "sha256"}:
        yield f"tokenizer is {_shown(tokenizer)}, but must be a map with path and sha256, or null"
    elif not isinstance(tokenizer["path"], str) or not _stays_near(tokenizer["path"]):
        yield (
            f"tokenizer.path is {_shown(tokenizer['path'])}, but must lead to a folder in the data set's or beside it"
        )
    elif not _is_sha256(tokenizer["sha256"]):
        yield f"tokenizer.sha256 is {_shown(tokenizer['sha256'])}, but must be 64 hexadecimal digits"


def _stays_near(path: str) -> bool:
    """True for a relative path into its folder, or into a neighbour of it: the tokenizer lies beside the splits."""
    parts = PurePosixPath(path).parts
    names = parts[1:] if parts[:1] == ("..",) else parts
    return bool(names) and path.isprintable() and not path.startswith("/") and ".." not in names


def _mistakes_of_shards(shards: Any, samples: Any) -> Iterator[str]:
    if not isinstance(shards, list):
        yield f"shards is {_shown(shards)}, but must be a list"
        return
    seen = set()
    for index, shard in enumerate(shards):
        if not isinstance(shard, dict) or set(shard) != set(_SHARD_FIELDS):
            yield f"shards[{index}] is {_shown(shard)}, but must be a map with {', '.join(_SHARD_FIELDS)}"
            return
        file = shard["file"]
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            yield f"shards[{index}].file is {_shown(file)}, but must be the plain name of a file in that folder"
        elif file in seen:
            yield f"shards[{index}].file is {_shown(file)}, which an earlier shard has"
        else:
            seen.add(file)
        for name in ("samples", "bytes"):
            if not _is_count(shard[name], 0, LARGEST_COUNT):
                yield f"shards[{index}].{name} is {_shown(shard[name])}, but must be a whole number, at least 0"
                return
        if not _is_sha256(shard["sha256"]):
            yield f"shards[{index}].sha256 is {_shown(shard['sha256'])}, but must be 64 hexadecimal digits"
        # A file must name its row groups, which are small, one by one.
        rows, size = shard["samples"], shard["bytes"]
        most = LARGEST_ROW_GROUP * (1 + size // _SMALLEST_ROW_GROUP_BYTES)
        if rows > most:
            yield f"shards[{index}].samples is {rows}, but a file of {size} bytes has at most {most}"
    held = sum(shard["samples"] for shard in shards)
    if held > LARGEST_COUNT or (samples is not None and held != samples):
        yield f"samples is {samples}, but the shards hold {held}"


def _mistakes_of_series(series: Any, values: dict[str, Any]) -> Iterator[str]:
    if series is None:
        return
    if not isinstance(series, dict) or set(series) - {"breaks"} != set(_SERIES_FIELDS):
        yield f"series is {_shown(series)}, but must be a map with {', '.join(_SERIES_FIELDS)}, or null"
        return
    names, steps = series["names"], sum(shard["samples"] for shard in values.get("shards", []))
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        yield f"series.names is {_shown(names)}, but must be a list of texts"
        return
    for key in ("mean", "scale"):
        numbers = series[key]
        is_list = isinstance(numbers, list) and len(numbers) == len(names)
        if not is_list or not all(_is_finite(number) and (key == "mean" or number > 0) for number in numbers):
            yield f"series.{key} is {_shown(numbers)}, but must be a finite number for each name, a scale above 0"
    if not _is_count(series["lookback"], 0, max(0, steps - 1)):
        yield f"series.lookback is {_shown(series['lookback'])}, but must be a whole number below the {steps} steps"
    if series["season"] is not None and not _is_count(series["season"], 1, LARGEST_SIZE):
        yield f"series.season is {_shown(series['season'])}, but must be a whole number, at least 1, or null"
    breaks = series.get("breaks", [])
    is_list = isinstance(breaks, list) and all(_is_count(step, 1, steps - 1) for step in breaks)
    if not is_list or any(step >= after for step, after in itertools.pairwise(breaks)):
        yield f"series.breaks is {_shown(breaks)}, but must be rising whole numbers from 1 to below the {steps} steps"
    columns = {SERIES: {"dtype": "float32", "shape": [len(names)]}}
    if values["columns"] != columns:
        yield f"columns is {_shown(values['columns'])}, but must be {columns} where there is a series"


# -----------------------------------------------------------------------------
# Values from JSON: true is an int to Python, a name may be a list, and a number may have thousands of digits.


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_count(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _shown(value: Any) -> str:
    """A value from outside, short and in one line."""
    return reprlib.repr(value)
