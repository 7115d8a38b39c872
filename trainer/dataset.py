"""Reading samples by index from a folder of Parquet shards."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from .order import WINDOW_SAMPLES

# Decoded samples kept in memory: twice what the order shuffles among each other at a time.
CACHED_SAMPLES = 2 * WINDOW_SAMPLES
OPEN_SHARDS = 128


class ShardedDataset:
    """A prepared data set: `read` gives any samples by index, decoding whole row groups and keeping recent ones.

    Args:
        folder: a folder with `manifest.json`.

    Raises:
        UserError: the folder is no complete data set (see `Manifest.load`).
    """

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.manifest = Manifest.load(folder)
        self.samples = sum(shard["samples"] for shard in self.manifest.shards)
        if self.samples == 0:
            raise UserError(f"{folder}: the data set holds no sample")
        self._shard_ends = np.cumsum([shard["samples"] for shard in self.manifest.shards])
        self._open: OrderedDict[int, tuple[pq.ParquetFile, np.ndarray]] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], dict[str, Any]] = OrderedDict()
        self._cached = 0

    def __len__(self) -> int:
        return self.samples

    def read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Samples in the order of `indices`: {column: array of its ragged length, or a number}."""
        shards = np.searchsorted(self._shard_ends, indices, side="right")
        return [self._sample(int(shard), int(index)) for shard, index in zip(shards, indices, strict=True)]

    def _sample(self, shard: int, index: int) -> dict[str, Any]:
        row = index - (int(self._shard_ends[shard - 1]) if shard else 0)
        group_ends = self._file(shard)[1]
        group = int(np.searchsorted(group_ends, row, side="right"))
        row -= int(group_ends[group - 1]) if group else 0
        sample = {}
        for name, (values, offsets) in self._group(shard, group).items():
            sample[name] = values[row] if offsets is None else values[offsets[row] : offsets[row + 1]]
        return sample

    def _file(self, shard: int) -> tuple[pq.ParquetFile, np.ndarray]:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        path = self.folder / self.manifest.shards[shard]["file"]
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from None
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._open[shard] = file, np.cumsum(rows)
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)[1][0].close()
        return self._open[shard]

    def _group(self, shard: int, group: int) -> dict[str, Any]:
        key = (shard, group)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        try:
            table = self._file(shard)[0].read_row_group(group, use_threads=False).combine_chunks()
        except (OSError, ValueError) as error:
            raise _damaged(self.folder / self.manifest.shards[shard]["file"], error) from None
        columns = {}
        for name in self.manifest.columns:
            array = table.column(name).chunk(0)
            if self.manifest.columns[name]["shape"]:
                columns[name] = array.flatten().to_numpy(), array.offsets.to_numpy() - array.offsets[0].as_py()
            else:
                columns[name] = array.to_numpy(), None
        self._groups[key] = columns
        self._cached += table.num_rows
        while self._cached > CACHED_SAMPLES and len(self._groups) > 1:
            oldest, dropped = self._groups.popitem(last=False)
            self._cached -= self._rows_of(*oldest, dropped)
        return columns

    def _rows_of(self, shard: int, group: int, columns: dict[str, Any]) -> int:
        values, offsets = next(iter(columns.values()))
        return len(values) if offsets is None else len(offsets) - 1


def _damaged(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"{path} cannot be read as Parquet ({reason}): prepare or copy it again")
