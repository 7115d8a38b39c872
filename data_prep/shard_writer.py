"""Shards: Parquet files with a row for each sample, in small row groups, hashed."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from longmix.data_prep.errors import naming
from longmix.data_prep.files import flush_to_disk, make_folder, sha256_of_file
from longmix.data_prep.manifest_fields import LARGEST_ROW_GROUP
from longmix.kernels.common.safe_files import new_beside

MAXIMUM_ROW_GROUP = LARGEST_ROW_GROUP  # readers fetch whole row groups: larger ones make a shuffled read expensive
ROW_GROUP_SAMPLES = 256
SAMPLES_PER_SHARD = 65536


# -----------------------------------------------------------------------------
# Columns: from the manifest's description of them to Arrow's types and arrays.


def arrow_schema(columns: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """The Arrow schema of a manifest's `columns`: an axis of size None is ragged, a number is a fixed size."""
    return pa.schema([pa.field(name, _arrow_type(column), nullable=False) for name, column in columns.items()])


def _arrow_type(column: Mapping[str, Any]) -> pa.DataType:
    arrow_type = pa.type_for_alias(column["dtype"])
    for size in reversed(column["shape"]):
        arrow_type = pa.list_(arrow_type, -1 if size is None else size)
    return arrow_type


def _compact(value: Any, arrow_type: pa.DataType) -> Any:
    """A list of numbers as an array of them, in the bytes that they take in the file: Python's take up to nine times as
    many. Everything else as it is.
    """
    if isinstance(value, list) and pa.types.is_list(arrow_type) and pa.types.is_primitive(arrow_type.value_type):
        return pa.array(value, type=arrow_type.value_type).to_numpy(zero_copy_only=False)
    return value


def _arrow_array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """A column of these entries. Arrow takes arrays of one axis only, and lists of lists are twenty times as large."""
    if getattr(values[0], "ndim", 1) < 2:
        return pa.array(values, type=arrow_type)
    return _list_array([len(value) for value in values], np.concatenate(values), arrow_type)


def _list_array(sizes: Sequence[int], entries: np.ndarray, arrow_type: pa.DataType) -> pa.Array:
    """Lists of these sizes, of the entries one after the other, which are numbers or lists themselves."""
    if entries.ndim == 1:
        inner = pa.array(entries, type=arrow_type.value_type)
    else:
        inner = _list_array(
            [entries.shape[1]] * len(entries), entries.reshape(-1, *entries.shape[2:]), arrow_type.value_type
        )
    if pa.types.is_fixed_size_list(arrow_type):
        if any(size != arrow_type.list_size for size in sizes):
            raise ValueError(f"lists of {sorted(set(sizes))} entries where {arrow_type.list_size} are expected")
        return pa.FixedSizeListArray.from_arrays(inner, type=arrow_type)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, inner, type=arrow_type)


# -----------------------------------------------------------------------------
# Files: a shard has its name only when it is whole, so that nothing that a kill left is ever read.


class ShardFile:
    """One Parquet file of samples; it appears under its name when `close` finds it complete."""

    def __init__(
        self, path: str | Path, columns: Mapping[str, Mapping[str, Any]], row_group_samples: int = ROW_GROUP_SAMPLES
    ) -> None:
        if not 1 <= row_group_samples <= MAXIMUM_ROW_GROUP:
            raise ValueError(f"row_group_samples is {row_group_samples}, allowed: 1 to {MAXIMUM_ROW_GROUP}")
        self.path = Path(path)
        self.samples = 0
        self.schema = arrow_schema(columns)
        self._temporary = new_beside(self.path)
        # No dictionary: token ids gain nothing from it.
        self._writer = pq.ParquetWriter(
            # Absolute: a colon in the first folder's name would make a URL of it.
            self._temporary.absolute(),
            self.schema,
            filesystem=pyarrow.fs.LocalFileSystem(),
            compression="zstd",
            use_dictionary=False,
            store_schema=False,
            # A reader then notices a flipped bit without reading, and hashing, the whole shard.
            write_page_checksum=True,
        )
        self._row_group_samples = row_group_samples
        self._buffer: list[Mapping[str, Any]] = []

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample: a sequence for each list column, a number for each scalar one."""
        self._buffer.append({column.name: _compact(sample[column.name], column.type) for column in self.schema})
        self.samples += 1
        if len(self._buffer) == self._row_group_samples:
            self._flush()

    def write_table(self, table: pa.Table) -> None:
        """Add a table of at most MAXIMUM_ROW_GROUP samples with the same columns as one row group."""
        self._flush()
        with naming(self.path):
            self._writer.write_table(table)
        self.samples += len(table)

    def close(self) -> dict[str, Any]:
        """Finish the file, flush it to the disk, rename it; returns its entry for `Manifest.shards`."""
        self._flush()
        with naming(self.path):
            self._writer.close()
            flush_to_disk(self._temporary)
        size, digest = self._temporary.stat().st_size, sha256_of_file(self._temporary)
        os.replace(self._temporary, self.path)
        flush_to_disk(self.path.parent)
        return {"file": self.path.name, "samples": self.samples, "bytes": size, "sha256": digest}

    def abandon(self) -> None:
        """Remove the unfinished file."""
        try:
            # Its end may be refused, too.
            with contextlib.suppress(OSError):
                self._writer.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._buffer:
            arrays = [
                _arrow_array([sample[column.name] for sample in self._buffer], column.type) for column in self.schema
            ]
            with naming(self.path):
                self._writer.write_table(pa.Table.from_arrays(arrays, schema=self.schema))
            self._buffer = []


class ShardWriter:
    """Writes samples to `folder/shard-00000.parquet` and so on.

    `columns` is the manifest's: name -> {"dtype", "shape"}. Use it as a context manager, or call `close`: only then is
    the last shard whole. Each shard appears under its name when it is complete.
    """

    def __init__(
        self,
        folder: str | Path,
        columns: Mapping[str, Mapping[str, Any]],
        samples_per_shard: int = SAMPLES_PER_SHARD,
        row_group_samples: int = ROW_GROUP_SAMPLES,
    ) -> None:
        if not 1 <= row_group_samples <= MAXIMUM_ROW_GROUP:
            raise ValueError(f"row_group_samples is {row_group_samples}, allowed: 1 to {MAXIMUM_ROW_GROUP}")
        if samples_per_shard < 1:
            raise ValueError(f"samples_per_shard is {samples_per_shard}, allowed: 1 or more")
        self.folder = Path(folder)
        make_folder(self.folder)
        self.columns = dict(columns)
        self.samples_per_shard = samples_per_shard
        self.row_group_samples = row_group_samples
        self.entries: list[dict[str, Any]] = []
        self._file: ShardFile | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample: a sequence for each list column, a number for each scalar one.

        Raises `ValueError` if its keys are not the columns.
        """
        if set(sample) != set(self.columns):
            raise ValueError(f"a sample has the columns {sorted(sample)}, expected {sorted(self.columns)}")
        if self._file is None:
            path = self.folder / shard_name(len(self.entries))
            self._file = ShardFile(path, self.columns, self.row_group_samples)
        self._file.write(sample)
        if self._file.samples == self.samples_per_shard:
            self.close()

    def close(self) -> list[dict[str, Any]]:
        """Finish the last shard and return the entries of all, for `Manifest.shards`."""
        if self._file is not None:
            self.entries.append(self._file.close())
            self._file = None
        return self.entries

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif self._file is not None:
            self._file.abandon()


def shard_name(index: int) -> str:
    return f"shard-{index:05d}.parquet"
