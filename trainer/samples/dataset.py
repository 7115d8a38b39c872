"""Reading samples by index from a folder of Parquet shards, here or on remote storage."""

import hashlib
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longmix.data_prep.errors import MachineFault, UserError, in_one_line, reason_of
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.parquet_columns import parquet_file
from longmix.data_prep.remote import RemoteFolder, is_remote
from longmix.data_prep.shard_writer import arrow_schema
from longmix.kernels.common.safe_files import open_input

from ..settings.sections import CacheSection
from .decoded_groups import KEPT_ROWS, DecodedGroups, Key, bytes_of_rank, narrowed, rows_in_turn
from .shard_cache import ShardCache
from .shard_check import Column, check_columns, check_footer, check_group

# Footers of shards that are kept, at least.
KEPT_FOOTERS = 128
# Copies of remote shards made at the same time, and row groups decoded.
COPIERS, DECODERS = 8, 4
# Bytes of a shard that are hashed between two batches: some hundredths of a second.
HASHED_BYTES = 1 << 23
# Other processes that share a small cache may evict a copy before it is opened; each attempt makes it anew.
_EVICTIONS = 10
# A shard's footer, and the row after the last one of each of its row groups.
Footer = tuple[pq.FileMetaData, np.ndarray]
_DAMAGES = (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException)
Item, Result = TypeVar("Item"), TypeVar("Result")


class ShardedDataset:
    """A prepared data set: `read` gives any samples by index, decoding whole row groups and keeping recent ones.

    Args:
        folder: a folder with `manifest.json`, or its URL.
        cache: where copies of remote shards are kept.
        ranges, window: what is read at a time: so many ranges of the samples, and so many samples of each. Twice that
            stays in memory, if its share of the memory has room for it; what has to go is decoded again.
        sets: data sets that this process reads, and that share the memory.

    Raises:
        UserError: the folder is no complete data set (see `Manifest.load`).
    """

    def __init__(self, folder: str, cache: CacheSection | None = None, ranges: int = 0, window: int = 0, sets: int = 1):
        self.folder = folder
        self.manifest = self.stored = Manifest.load(folder)
        self.samples = sum(shard["samples"] for shard in self.manifest.shards)
        if self.samples == 0:
            raise UserError(f"{folder}: the data set holds no sample")
        check_columns(folder, self.manifest)
        self._remote = RemoteFolder(folder) if is_remote(folder) else None
        self._cache = ShardCache(cache or CacheSection()) if is_remote(folder) else None
        self._copied: set[int] = set()
        self._unverified: list[int] = []
        self._verification: Iterator[None] | None = None
        self._seen: set[int] = set()
        # Where training and evaluation have one data set, two threads read it.
        self._lock = threading.Lock()
        self._shard_starts = np.cumsum([0, *(shard["samples"] for shard in self.manifest.shards)])
        self._footers: OrderedDict[int, Footer] = OrderedDict()
        self._ranges, self._window, self._most_footers = ranges, window, max(KEPT_FOOTERS, 2 * ranges)
        self._groups = DecodedGroups(rows_in_turn(ranges, window) or KEPT_ROWS, bytes_of_rank(sets))
        self._schema = arrow_schema(self.manifest.columns)
        self._dtypes = {name: np.dtype(column["dtype"]) for name, column in self.manifest.columns.items()}

    @property
    def cache_room(self) -> int | None:
        """Bytes that copies of this data set's shards, and of others', may take here; None: it needs no copies."""
        return None if self._cache is None else self._cache.room()

    def __len__(self) -> int:
        return self.samples

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row in it) of samples, without reading anything."""
        shards = np.searchsorted(self._shard_starts, indices, side="right") - 1
        return shards, indices - self._shard_starts[shards]

    def reach(self, rows: int) -> None:
        """Keep as many rows more as are read where each sample is the first of `rows` consecutive ones."""
        if self._ranges:
            self._groups.most_rows = rows_in_turn(self._ranges, self._window, rows - 1)

    def read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Samples in the order of `indices`: {column: array of its ragged length, (n,) or (n, C), or a number}.

        Each row group is decoded once at the most, several at a time.

        Raises:
            UserError: a shard cannot be read, or is not what the manifest says.
        """
        shards, rows = self.locate(indices)
        samples: list[dict[str, Any]] = [{}] * len(shards)
        with self._lock:
            wanted: dict[Key, list[tuple[int, int]]] = defaultdict(list)
            footers = self._footers_of(shards.tolist())
            for place, (shard, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
                group, row = _place(footers[shard], row)
                wanted[shard, group].append((place, row))
            for key, columns in self._groups_of(list(wanted), footers):
                for place, row in wanted[key]:
                    samples[place] = self._sample(columns, row)
        return samples

    def read_consecutive(self, name: str, first: int, count: int) -> np.ndarray:
        """Column `name`, of a fixed shape, of the samples [first, first + count): (count, ...).

        Raises:
            UserError: as `read`.
        """
        pieces = []
        with self._lock:
            while count > 0:
                shard, row = (int(number) for number in self.locate(np.asarray(first)))
                footers = self._footers_of([shard])
                group, start = _place(footers[shard], row)
                ((_, columns),) = self._groups_of([(shard, group)], footers)
                pieces.append(columns[name][0][start : start + count])
                first, count = first + len(pieces[-1]), count - len(pieces[-1])
        return np.concatenate(pieces).astype(self._dtypes[name], copy=False)

    def verify_next(self) -> bool:
        """Hash the next `HASHED_BYTES` of the shards that were read here, and compare each one's hash with the manifest
        when it is complete. False if none is left to compare.

        Reading does not wait for it: page checksums show damage at once, and only a whole file of another data set with
        as many bytes passes them. Copies of remote shards were compared when they were made.

        Raises:
            UserError: it is another file.
        """
        if self._verification is None:
            if not self._unverified:
                return False
            self._verification = self._verifying(self.manifest.shards[self._unverified.pop()])
        for _ in self._verification:
            break
        else:
            self._verification = None
        return True

    def _verifying(self, entry: dict[str, Any]) -> Iterator[None]:
        """Hash a shard, and pause after each piece but the last."""
        path, digest = Path(self.folder) / entry["file"], hashlib.sha256()
        try:
            with open_input(path) as file:
                while len(piece := file.read(HASHED_BYTES)) == HASHED_BYTES:
                    digest.update(piece)
                    yield
                digest.update(piece)
            if digest.hexdigest() != entry["sha256"]:
                raise ValueError("its SHA-256 is not the manifest's")
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from None

    def fetch(self, indices: np.ndarray) -> None:
        """Have the shards of these samples copied here, several at a time, if they are remote."""
        if self._remote is None:
            return
        wanted = sorted(set(self.locate(indices)[0].tolist()) - self._copied)
        if wanted:
            with ThreadPoolExecutor(COPIERS) as copiers:
                list(copiers.map(self._copy, wanted))
            self._copied.update(wanted)

    def _sample(self, columns: dict[str, Column], row: int) -> dict[str, Any]:
        """A sample of its own: nothing of it lies in its row group, which can go."""
        sample = {}
        for name, (values, offsets) in columns.items():
            held = values[row] if offsets is None else values[offsets[row] : offsets[row + 1]]
            sample[name] = held.astype(self._dtypes[name])
        return sample

    def _footers_of(self, shards: list[int]) -> dict[int, Footer]:
        wanted = sorted(set(shards))
        found = {shard: self._footers[shard] for shard in wanted if shard in self._footers}
        for shard in found:
            self._footers.move_to_end(shard)
        for shard, footer in _worked_on([shard for shard in wanted if shard not in found], self._read_footer):
            found[shard] = self._footers[shard] = footer
            if self._remote is None and shard not in self._seen:
                self._seen.add(shard)
                self._unverified.append(shard)
            if len(self._footers) > self._most_footers:
                self._footers.popitem(last=False)
        return found

    def _groups_of(self, keys: list[Key], footers: dict[int, Footer]) -> Iterator[tuple[Key, dict[str, Column]]]:
        """The columns of row groups: first those that are kept, for others may take their room."""
        missing = [key for key in keys if key not in self._groups]
        for key in [key for key in keys if key in self._groups]:
            yield key, self._groups.use(key)
        for key, columns in _worked_on(missing, lambda key: self._decode(*key, footers[key[0]][0])):
            self._groups.keep(key, columns)
            yield key, columns

    # These two may run in several threads at a time: they change nothing here.

    def _read_footer(self, shard: int) -> Footer:
        def read(path: Path) -> pq.FileMetaData:
            with parquet_file(path) as file:
                check_footer(file.metadata, self.manifest.shards[shard]["samples"], self.manifest)
                return file.metadata

        metadata = self._reading(shard, read)
        return metadata, np.cumsum([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])

    def _decode(self, shard: int, group: int, metadata: pq.FileMetaData) -> dict[str, Column]:
        def read(path: Path) -> dict[str, Column]:
            # Open for this one reading: so a copy that is evicted takes no room any more.
            with parquet_file(path, metadata=metadata, page_checksum_verification=True) as file:
                table = file.read_row_group(group, use_threads=False).combine_chunks()
            columns = _decode(table, self._schema)
            check_group(columns, self.manifest)
            return narrowed(columns)

        return self._reading(shard, read)

    def _reading(self, shard: int, work: Callable[[Path], Result]) -> Result:
        """`work` on the shard's file; of a remote one that is damaged here a new copy is made, once."""
        entry = self.manifest.shards[shard]
        if self._remote is None:
            path = Path(self.folder) / entry["file"]
            try:
                return work(path)
            except _DAMAGES as error:
                raise _damaged(path, error) from None
        was_damaged = False
        for _ in range(_EVICTIONS):
            path = self._copy(shard)
            try:
                return work(path)
            except FileNotFoundError:
                continue
            except _DAMAGES as error:
                if was_damaged:
                    raise _damaged(f"{self._remote.url}/{entry['file']}", error) from None
                was_damaged = True
                self._cache.drop(entry)
        raise UserError(
            f"{path} was evicted {_EVICTIONS} times before it could be read: raise data.cache.max_bytes, "
            "or give the processes caches of their own"
        )

    def _copy(self, shard: int) -> Path:
        return self._cache.fetch(self._remote, self.manifest.shards[shard])


# Row groups as arrays, several at a time, and the one way in which a shard that cannot be read is told.


def _place(footer: Footer, row: int) -> tuple[int, int]:
    """(row group, row in it) of a row of a shard."""
    ends = footer[1]
    group = int(np.searchsorted(ends, row, side="right"))
    return group, row - (int(ends[group - 1]) if group else 0)


def _worked_on(items: list[Item], work: Callable[[Item], Result]) -> Iterator[tuple[Item, Result]]:
    """Each item with `work` of it, in their order; threads work on the `DECODERS` that come next.

    Opening a file of a network's waits, and pyarrow reads and decodes without the interpreter.
    """
    if len(items) < 2:
        yield from ((item, work(item)) for item in items)
        return
    with ThreadPoolExecutor(DECODERS) as threads:
        ahead: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            ahead.append((item, threads.submit(work, item)))
            if len(ahead) > DECODERS:
                first, result = ahead.popleft()
                yield first, result.result()
        for item, result in ahead:
            yield item, result.result()


def _decode(table: pa.Table, schema: pa.Schema) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name in table.column_names:
        array = table.column(name).chunk(0)
        if array.null_count:
            raise ValueError(f"column {name} holds nulls")
        if array.type != schema.field(name).type:
            array = array.cast(schema.field(name).type)  # files do not tell which lists have a fixed size
        values, offsets, widths = array, None, []
        if pa.types.is_list(array.type):
            values, offsets = array.flatten(), array.offsets.to_numpy() - array.offsets[0].as_py()
        while pa.types.is_fixed_size_list(values.type) and not values.null_count:
            widths.append(values.type.list_size)
            values = values.flatten()
        if values.null_count:
            raise ValueError(f"column {name} holds nulls")
        columns[name] = values.to_numpy(zero_copy_only=False).reshape(-1, *widths), offsets
    return columns


def _damaged(path: Path | str, error: Exception) -> UserError | MachineFault:
    """A mistake: the data must be brought back; or a fault, where it is the disk or the network that fails."""
    if isinstance(error, OSError) and isinstance(found := in_one_line(error), MachineFault):
        return found
    return UserError(f"{path} cannot be read as a shard ({reason_of(error)}): prepare or copy it again")
