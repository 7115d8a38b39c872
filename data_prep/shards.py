"""Parquet shards: one row per sample, small row groups, hashed."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import atomic_path, flush_to_disk, sha256_of_file
from longmix.data_prep.manifest import FILE_NAME, Manifest

MAXIMUM_ROW_GROUP = 1024  # readers fetch whole row groups: larger ones make a shuffled read expensive
SAMPLES_PER_SHARD = 65536

LIST_INT32 = {"dtype": "int32", "shape": [None]}
SCALAR_INT64 = {"dtype": "int64", "shape": []}
SCALAR_FLOAT32 = {"dtype": "float32", "shape": []}


def arrow_schema(columns: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """The Arrow schema of a manifest's `columns`: an axis of size None is ragged, a number is a fixed size."""
    return pa.schema([pa.field(name, _arrow_type(column), nullable=False) for name, column in columns.items()])


def _arrow_type(column: Mapping[str, Any]) -> pa.DataType:
    arrow_type = pa.type_for_alias(column["dtype"])
    for size in reversed(column["shape"]):
        arrow_type = pa.list_(arrow_type, -1 if size is None else size)
    return arrow_type


def open_parquet(path: str | Path, schema: pa.Schema) -> pq.ParquetWriter:
    """The writer that every shard is written with: no dictionary (token ids gain nothing from it), zstd."""
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False, store_schema=False)


def shard_entry(path: str | Path, samples: int) -> dict[str, Any]:
    """The manifest's entry of one finished shard."""
    path = Path(path)
    return {"file": path.name, "samples": samples, "bytes": path.stat().st_size, "sha256": sha256_of_file(path)}


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
        row_group_samples: int = 256,
    ) -> None:
        if not 1 <= row_group_samples <= MAXIMUM_ROW_GROUP:
            raise ValueError(f"row_group_samples is {row_group_samples}, allowed: 1 to {MAXIMUM_ROW_GROUP}")
        if samples_per_shard < 1:
            raise ValueError(f"samples_per_shard is {samples_per_shard}, allowed: 1 or more")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.schema = arrow_schema(columns)
        self.samples_per_shard = samples_per_shard
        self.row_group_samples = row_group_samples
        self.entries: list[dict[str, Any]] = []
        self._buffer: list[Mapping[str, Any]] = []
        self._samples = 0
        self._writer: pq.ParquetWriter | None = None
        self._path: Any = None

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample: a sequence for each list column, a number for each scalar one.

        Raises `ValueError` if its keys are not the columns.
        """
        if set(sample) != set(self.schema.names):
            raise ValueError(f"a sample has the columns {sorted(sample)}, expected {sorted(self.schema.names)}")
        self._buffer.append(sample)
        self._samples += 1
        full = self._samples == self.samples_per_shard
        if full or len(self._buffer) == self.row_group_samples:
            self._flush()
        if full:
            self._finish_shard()

    def close(self) -> list[dict[str, Any]]:
        """Finish the last shard and return the entries of all, for `Manifest.shards`."""
        self._flush()
        self._finish_shard()
        return self.entries

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif self._writer is not None:
            self._writer.close()
            self._path.__exit__(kind, error, trace)

    def _flush(self) -> None:
        if not self._buffer:
            return
        if self._writer is None:
            self._path = atomic_path(self.folder / f"shard-{len(self.entries):05d}.parquet")
            self._writer = open_parquet(self._path.__enter__(), self.schema)
        arrays = [
            pa.array([sample[column.name] for sample in self._buffer], type=column.type) for column in self.schema
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self.schema))
        self._buffer = []

    def _finish_shard(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._path.__exit__(None, None, None)
        self.entries.append(shard_entry(self.folder / f"shard-{len(self.entries):05d}.parquet", self._samples))
        self._writer, self._path, self._samples = None, None, 0


def write_dataset(
    folder: str | Path,
    samples: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Mapping[str, Any]],
    **manifest_fields: Any,
) -> Manifest:
    """Write a whole data set and return its manifest. The folder appears complete, replacing an older data set.

    `manifest_fields` are `Manifest`'s (`split` and `split_rule` at least); samples, tokens, columns and shards are
    filled in. For data that one process writes in one go: GLUE, small sets, tests.
    Raises `UserError` if `folder` exists and holds something that is no data set.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE_NAME).is_file():
        raise UserError(f"{folder} already holds files that are no data set: choose another folder, or empty it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder for the data set")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        counted = _Counter(samples)
        with ShardWriter(temporary, columns) as writer:
            for sample in counted:
                writer.write(sample)
        manifest = Manifest(
            columns={name: dict(column) for name, column in columns.items()},
            samples=counted.samples,
            tokens=counted.tokens,
            shards=writer.entries,
            **manifest_fields,
        )
        manifest.save(temporary)
        replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def replace_folder(new: Path, folder: Path) -> None:
    """Rename the finished folder `new` to `folder`; what was there is removed afterwards."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    flush_to_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


class _Counter:
    """Passes samples on and counts them and their tokens (None without any column of token ids)."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self.source = samples
        self.samples = 0
        self.tokens: int | None = None

    def __iter__(self):
        for sample in self.source:
            self.samples += 1
            for name in ("input_ids", "input_ids_b"):
                if name in sample:
                    self.tokens = (self.tokens or 0) + len(sample[name])
            yield sample
