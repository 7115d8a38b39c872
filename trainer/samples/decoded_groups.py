"""Decoded row groups in a process's memory: those used last, within a bound of rows and one of bytes."""

from collections import OrderedDict

import numpy as np

from longmix.data_prep.shard_writer import ROW_GROUP_SAMPLES

from .host_memory import host_memory, processes_here
from .shard_check import Column

# Rows that are kept where nobody says how many are read in turn.
KEPT_ROWS = 131072
# The share of a machine's memory that the row groups of all its ranks may take together, as 1 / this.
_SHARE = 8
_NARROW = tuple(map(np.iinfo, (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)))

# Of a row group, by its shard and its number there.
Key = tuple[int, int]


def rows_in_turn(ranges: int, window: int, more: int = 0) -> int:
    """Rows to keep where so many ranges are read in turn, a window of samples of each, and each sample reaches over
    `more` rows after its own: the row groups on which such windows can lie, and at least twice the windows, for not all
    ranges come to their next window at the same time.
    """
    groups = -(-(window + more - 1) // ROW_GROUP_SAMPLES) + 1
    return ranges * max(2 * window, groups * ROW_GROUP_SAMPLES)


def bytes_of_rank(sets: int = 1) -> int:
    """Bytes that the row groups of each of so many data sets may take in this process."""
    return host_memory() // _SHARE // (processes_here() or 1) // sets


class DecodedGroups:
    """Row groups that were used last. At least one is kept, however large it is.

    Integers are kept in the narrowest type that holds them: ids of a vocabulary up to 65,536 in half the memory.

    Attributes:
        rows, bytes: of the row groups that are kept.
    """

    def __init__(self, most_rows: int, most_bytes: int):
        self.most_rows, self.most_bytes = most_rows, most_bytes
        self.rows = self.bytes = 0
        self._groups: OrderedDict[Key, dict[str, Column]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, key: Key) -> bool:
        return key in self._groups

    def use(self, key: Key) -> dict[str, Column]:
        """The columns of a row group that is kept; it counts as used now."""
        self._groups.move_to_end(key)
        return self._groups[key]

    def keep(self, key: Key, columns: dict[str, Column]) -> None:
        """Add a row group; those used longest ago make room."""
        self._groups[key] = columns
        self._count(columns, 1)
        while (self.rows > self.most_rows or self.bytes > self.most_bytes) and len(self._groups) > 1:
            self._count(self._groups.popitem(last=False)[1], -1)

    def _count(self, columns: dict[str, Column], sign: int) -> None:
        self.rows += sign * _rows(columns)
        self.bytes += sign * sum(_bytes(column) for column in columns.values())


def narrowed(columns: dict[str, Column]) -> dict[str, Column]:
    """The same numbers, integers in the narrowest type that holds them all."""
    return {name: (_narrowed(values), offsets) for name, (values, offsets) in columns.items()}


def _narrowed(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.size == 0:
        return values
    smallest, largest = int(values.min()), int(values.max())
    holding = (limits.dtype for limits in _NARROW if limits.min <= smallest and largest <= limits.max)
    dtype = next(holding, values.dtype)
    return values.astype(dtype) if dtype.itemsize < values.dtype.itemsize else values


def _rows(columns: dict[str, Column]) -> int:
    values, offsets = next(iter(columns.values()))
    return len(values) if offsets is None else len(offsets) - 1


def _bytes(column: Column) -> int:
    values, offsets = column
    return values.nbytes + (0 if offsets is None else offsets.nbytes)
