"""The check of a shard against its manifest: a file may be whole and still be another one."""

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED, SERIES
from longmix.data_prep.shard_writer import MAXIMUM_ROW_GROUP

from .collate import SECOND, TOKEN_IDS, VALUES

COORDINATES = "coordinates"
DOCUMENT_STARTS = "document_starts"
LABELS = "labels"
# Values (n,), or vectors (n, C), and where each sample's begin and end among them (None: one value for each sample).
Column = tuple[np.ndarray, np.ndarray | None]


class NotAsDescribed(ValueError):
    """A shard that contradicts its manifest."""


def check_columns(folder: str, manifest: Manifest) -> None:
    """Raise UserError unless samples can be read from the columns of a data set."""
    if manifest.series is not None:
        return  # the manifest itself says of which columns
    columns = manifest.columns
    given = [name for name in (TOKEN_IDS, VALUES) if name in columns]
    if len(given) != 1:
        found = f"both {' and '.join(given)}" if given else f"neither {TOKEN_IDS} nor {VALUES}"
        raise UserError(f"{folder} has the columns {', '.join(columns)}: {found}, where one of them must be")
    for name, column in columns.items():
        first = name.removesuffix(SECOND)
        if name.endswith(SECOND) and first not in (*given, "token_type_ids", COORDINATES):
            raise UserError(f"{folder}: column {name} belongs to no second sequence: it has columns of {given[0]}")
        if first in (VALUES, COORDINATES):
            is_readable = len(column["shape"]) == 2 and column["shape"][0] is None and column["shape"][1] is not None
            is_readable = is_readable and column["dtype"] == "float32"
        elif first in (TOKEN_IDS, DOCUMENT_STARTS):
            is_readable = column["shape"] == [None]
        else:
            is_readable = column["shape"] in ([], [None])
        if not is_readable:
            found = _shown_column(column["dtype"], column["shape"])
            raise UserError(f"{folder}: column {name} is {found}, which cannot be read here")
        if name.endswith(SECOND) and given[0] + SECOND not in columns:
            raise UserError(f"{folder} has the column {name}, but no {given[0]}{SECOND}")


def check_footer(metadata: pq.FileMetaData, samples: int, manifest: Manifest) -> None:
    """Raise NotAsDescribed unless a file has as many rows, in small groups, and the columns that the manifest gives."""
    if metadata.num_rows != samples:
        raise NotAsDescribed(f"it holds {metadata.num_rows} samples, the manifest says {samples}")
    largest = max((metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)), default=0)
    if largest > MAXIMUM_ROW_GROUP:
        raise NotAsDescribed(f"it has a row group of {largest} samples, more than {MAXIMUM_ROW_GROUP}")
    _check_widths(metadata, manifest)
    found = {field.name: _described(field.type) for field in metadata.schema.to_arrow_schema()}
    # Files do not tell which of their lists have a fixed size: that shows when they are read.
    expected = {name: (column["dtype"], len(column["shape"])) for name, column in manifest.columns.items()}
    if found != expected:
        raise NotAsDescribed(f"it has the columns {_shown(found)}, the manifest says {_shown(expected)}")


def _check_widths(metadata: pq.FileMetaData, manifest: Manifest) -> None:
    """Raise NotAsDescribed if a column's vectors are wider than all its numbers in a row group are many."""
    widths = {name: math.prod(size for size in one["shape"] if size) for name, one in manifest.columns.items()}
    for number in range(metadata.num_row_groups if max(widths.values()) > 1 else 0):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            width = widths.get(column.path_in_schema.split(".")[0], 1)
            if group.num_rows and column.num_values < width:
                raise NotAsDescribed(
                    f"{column.path_in_schema} has {column.num_values} numbers in a row group, and the manifest says "
                    f"vectors of {width}"
                )


def check_group(columns: Mapping[str, Column], manifest: Manifest) -> None:
    """Raise NotAsDescribed unless the decoded samples of a row group fit each other and the manifest."""
    if manifest.series is not None:
        if not np.isfinite(columns[SERIES][0]).all():
            raise NotAsDescribed(f"{SERIES} holds values that are not finite")
        return
    inputs = TOKEN_IDS if TOKEN_IDS in columns else VALUES
    lengths = {name: np.diff(columns[name][1]) for name in (inputs, inputs + SECOND) if name in columns}
    for name, counts in lengths.items():
        if inputs == TOKEN_IDS and manifest.vocab_size is not None:
            _check_range(name, columns[name][0], manifest.vocab_size, "vocabulary")
        if manifest.sequence_length is not None and counts.max(initial=0) > manifest.sequence_length:
            found = f"{int(counts.max())} {'tokens' if inputs == TOKEN_IDS else 'positions'}"
            raise NotAsDescribed(f"a sample has {found}, the manifest says at most {manifest.sequence_length}")
    for name, (values, starts) in columns.items():
        beside = inputs + SECOND if name.endswith(SECOND) else inputs
        if name == DOCUMENT_STARTS:
            _check_document_starts(values, np.diff(starts), starts, lengths[inputs])
        elif starts is not None and not np.array_equal(np.diff(starts), lengths[beside]):
            raise NotAsDescribed(f"{name} and {beside} of a sample differ in length")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise NotAsDescribed(f"{name} holds values that are not finite")
    if LABELS in columns and manifest.num_labels is not None and columns[LABELS][0].dtype.kind in "iu":
        labels = columns[LABELS][0]
        if manifest.columns[LABELS]["shape"]:  # only among positions may there be some without a label
            labels = labels[labels != IGNORED]
        _check_range(LABELS, labels, manifest.num_labels, "num_labels")


def _check_range(name: str, values: np.ndarray, size: int, bound: str) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        found = int(values.min() if values.min() < 0 else values.max())
        raise NotAsDescribed(f"{name} holds {found}, the manifest's {bound} allows 0 .. {size - 1}")


def _check_document_starts(values: np.ndarray, counts: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> None:
    """Each sample's starts must begin with 0, rise, and lie within the sample."""
    is_first = np.zeros(len(values), dtype=bool)
    is_first[offsets[:-1][counts > 0]] = True
    rises = np.diff(values, prepend=0) > 0
    sound = np.where(is_first, values == 0, rises) & (values < np.maximum(np.repeat(lengths, counts), 1))
    if (counts == 0).any() or not sound.all():
        raise NotAsDescribed(f"{DOCUMENT_STARTS} of a sample are not 0 and rising offsets within it")


def _described(arrow_type: pa.DataType) -> tuple[str, int]:
    """(dtype as a manifest writes it, axes) of a column."""
    axes = 0
    while pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        arrow_type, axes = arrow_type.value_type, axes + 1
    names = {"float": "float32", "double": "float64", "halffloat": "float16"}
    return names.get(str(arrow_type), str(arrow_type)), axes


def _shown(columns: dict[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {dtype}{'[]' * axes}" for name, (dtype, axes) in sorted(columns.items()))


def _shown_column(dtype: str, shape: list[int | None]) -> str:
    return dtype + "".join("[]" if size is None else f"[{size}]" for size in shape)
