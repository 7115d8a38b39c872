"""Whether a shard holds what its manifest says: a file may be whole and still be another one."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import MAXIMUM_ROW_GROUP

from .masking import IGNORED

TOKEN_IDS = "input_ids"
DOCUMENT_STARTS = "document_starts"
LABELS = "labels"
# Flat values, and where each sample's begin and end among them (None for a column of one value each).
Column = tuple[np.ndarray, np.ndarray | None]


class NotAsDescribed(ValueError):
    """A shard that contradicts its manifest."""


def check_columns(folder: str, manifest: Manifest) -> None:
    """Raise UserError if the columns of a data set are none that samples can be read from."""
    if TOKEN_IDS not in manifest.columns:
        raise UserError(f"{folder} has the columns {', '.join(manifest.columns)}, but no {TOKEN_IDS}: it is no text")
    for name, column in manifest.columns.items():
        if column["shape"] not in ([], [None]) or (name in (TOKEN_IDS, DOCUMENT_STARTS) and not column["shape"]):
            raise UserError(f"{folder}: column {name} has the shape {column['shape']}, which cannot be read here")


def check_footer(metadata: pq.FileMetaData, samples: int, manifest: Manifest) -> None:
    """Raise NotAsDescribed unless a file has as many rows, in small groups, and the columns that the manifest gives."""
    if metadata.num_rows != samples:
        raise NotAsDescribed(f"it holds {metadata.num_rows} samples, the manifest says {samples}")
    largest = max((metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)), default=0)
    if largest > MAXIMUM_ROW_GROUP:
        raise NotAsDescribed(f"it has a row group of {largest} samples, more than {MAXIMUM_ROW_GROUP}")
    found = {field.name: _described(field.type) for field in metadata.schema.to_arrow_schema()}
    expected = {name: (column["dtype"], len(column["shape"])) for name, column in manifest.columns.items()}
    if found != expected:
        raise NotAsDescribed(f"it has the columns {_shown(found)}, the manifest says {_shown(expected)}")


def check_group(columns: Mapping[str, Column], manifest: Manifest) -> None:
    """Raise NotAsDescribed unless the decoded samples of a row group fit each other and the manifest."""
    tokens, offsets = columns[TOKEN_IDS]
    lengths = np.diff(offsets)
    if manifest.vocab_size is not None:
        _check_range(TOKEN_IDS, tokens, manifest.vocab_size, "vocabulary")
    if manifest.sequence_length is not None and lengths.max(initial=0) > manifest.sequence_length:
        longest = int(lengths.max())
        raise NotAsDescribed(f"a sample has {longest} tokens, the manifest says at most {manifest.sequence_length}")
    for name, (values, starts) in columns.items():
        if name == DOCUMENT_STARTS:
            _check_document_starts(values, np.diff(starts), starts, lengths)
        elif starts is not None and not name.endswith("_b") and not np.array_equal(np.diff(starts), lengths):
            raise NotAsDescribed(f"{name} and {TOKEN_IDS} of a sample differ in length")
    if LABELS in columns and manifest.num_labels is not None and columns[LABELS][0].dtype.kind in "iu":
        labels = columns[LABELS][0]
        _check_range(LABELS, labels[labels != IGNORED], manifest.num_labels, "num_labels")


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
    while pa.types.is_list(arrow_type):
        arrow_type, axes = arrow_type.value_type, axes + 1
    names = {"float": "float32", "double": "float64", "halffloat": "float16"}
    return names.get(str(arrow_type), str(arrow_type)), axes


def _shown(columns: dict[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {dtype}{'[]' * axes}" for name, (dtype, axes) in sorted(columns.items()))
