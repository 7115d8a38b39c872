"""Parquet shards: one row per sample, small row groups, hashed."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import flush_to_disk, sha256_of_file
from longmix.data_prep.manifest import FILE_NAME, Manifest

MAXIMUM_ROW_GROUP = 1024  # readers fetch whole row groups: larger ones make a shuffled read expensive
ROW_GROUP_SAMPLES = 256
SAMPLES_PER_SHARD = 65536

LIST_INT32 = {"dtype": "int32", "shape": [None]}
SCALAR_INT64 = {"dtype": "int64", "shape": []}
SCALAR_FLOAT32 = {"dtype": "float32", "shape": []}

# Columns whose entries are a sample's tokens, or positions.
_COUNTED = ("input_ids", "input_ids_b", "values", "values_b")


def arrow_schema(columns: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """The Arrow schema of a manifest's `columns`: an axis of size None is ragged, a number is a fixed size."""
    return pa.schema([pa.field(name, _arrow_type(column), nullable=False) for name, column in columns.items()])


def _arrow_type(column: Mapping[str, Any]) -> pa.DataType:
    arrow_type = pa.type_for_alias(column["dtype"])
    for size in reversed(column["shape"]):
        arrow_type = pa.list_(arrow_type, -1 if size is None else size)
    return arrow_type


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
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        # No dictionary: token ids gain nothing from it.
        self._writer = pq.ParquetWriter(
            self._temporary,
            self.schema,
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
        self._buffer.append(sample)
        self.samples += 1
        if len(self._buffer) == self._row_group_samples:
            self._flush()

    def write_table(self, table: pa.Table) -> None:
        """Add a table of at most MAXIMUM_ROW_GROUP samples with the same columns as one row group."""
        self._flush()
        self._writer.write_table(table)
        self.samples += len(table)

    def close(self) -> dict[str, Any]:
        """Finish the file, flush it to the disk, rename it; returns its entry for `Manifest.shards`."""
        self._flush()
        self._writer.close()
        flush_to_disk(self._temporary)
        size, digest = self._temporary.stat().st_size, sha256_of_file(self._temporary)
        os.replace(self._temporary, self.path)
        flush_to_disk(self.path.parent)
        return {"file": self.path.name, "samples": self.samples, "bytes": size, "sha256": digest}

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._buffer:
            arrays = [
                _arrow_array([sample[column.name] for sample in self._buffer], column.type) for column in self.schema
            ]
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
        self.folder.mkdir(parents=True, exist_ok=True)
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
    with _unfinished_folder(folder) as temporary:
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
    return manifest


@contextlib.contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` for this process to write to, removed at the end unless it was renamed.

    A lock on it, which goes with the process, tells others that it is being written. What has none was left by
    processes that were killed, and is removed first.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with contextlib.ExitStack() as stack:
        # Held while folders are looked through and made, so that none is seen between its making and its lock.
        with _locked(folder.parent, fcntl.LOCK_EX):
            for left in _siblings(folder, "new"):
                with _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
                    if is_free:
                        shutil.rmtree(left, ignore_errors=True)
            temporary.mkdir()
            stack.enter_context(_locked(temporary, fcntl.LOCK_EX))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        yield temporary


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[bool]:
    """Whether the lock was given: not if another process has it, or the folder or its file system cannot be locked."""
    with contextlib.ExitStack() as stack:
        given = False
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, kind)
            given = True
        yield given


def _siblings(folder: Path, suffix: str) -> list[Path]:
    """Folders `.NAME.PROCESS.suffix` beside a folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.{suffix}")
    return [path for path in folder.parent.iterdir() if name.fullmatch(path.name)]


def replace_folder(new: Path, folder: Path) -> None:
    """Rename the finished folder `new` to `folder`; what was there is removed afterwards."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    flush_to_disk(folder.parent)
    # With those of processes that were killed just here.
    for path in _siblings(folder, "old"):
        shutil.rmtree(path, ignore_errors=True)


class _Counter:
    """Passes samples on and counts them and their tokens or, of real values, positions (None without any of these)."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self.source = samples
        self.samples = 0
        self.tokens: int | None = None

    def __iter__(self):
        for sample in self.source:
            self.samples += 1
            for name in _COUNTED:
                if name in sample:
                    self.tokens = (self.tokens or 0) + len(sample[name])
            yield sample
