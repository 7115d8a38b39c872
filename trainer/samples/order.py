"""The order of the samples: pure functions of (seed, epoch), independent of ranks, workers and restarts.

An epoch of n samples interleaves P partitions, contiguous ranges of the sample index whose sizes differ by at most one:
position p of the epoch lies in partition p mod P. Each partition is cut into windows of consecutive samples; the order
of the windows and the order within each are permuted anew every epoch. So an epoch is a bijection, any position is
found in O(1) time and memory, and a rank that takes whole partitions touches few shards at a time.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from longmix.data_prep.errors import UserError

from ..settings.sections import DataSection
from . import counter_random

LARGEST_DEFAULT_PARTITIONS = 64
# Samples that are shuffled among each other at a time, over all partitions; bounds what a reader holds in memory.
WINDOW_SAMPLES = 65536
SMALLEST_WINDOW = 1024
# Distinguishes the uses of one seed.
_WINDOW_ORDER, _WITHIN_WINDOW, _MIXTURE = 1, 2, 3
# Slots after which the shares of several weighted sources hold exactly.
MIXTURE_CYCLE = 1024


# One epoch of one data set: a permutation that is computed at any position, never stored.


def default_partitions(batch_samples: int) -> int:
    """The largest power of two up to 64 that divides the global batch."""
    return min(batch_samples & -batch_samples, LARGEST_DEFAULT_PARTITIONS)


@lru_cache(maxsize=1024)
def _permutation(size: int, *key_parts: int) -> counter_random.Permutation:
    return counter_random.Permutation(size, int(counter_random.key(*key_parts)))


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch of one data set."""

    samples: int
    partitions: int
    seed: int
    epoch: int

    @property
    def window(self) -> int:
        return max(SMALLEST_WINDOW, WINDOW_SAMPLES // self.partitions)

    def sample_at(self, positions: np.ndarray) -> np.ndarray:
        """Sample ids at positions of this epoch, both int64 in [0, samples)."""
        return self._map(np.asarray(positions, dtype=np.int64), self._samples_of_partition)

    def position_of(self, samples: np.ndarray) -> np.ndarray:
        """The inverse of `sample_at`."""
        samples = np.asarray(samples, dtype=np.int64)
        small, longer = divmod(self.samples, self.partitions)
        boundary = longer * (small + 1)
        partition = np.where(samples < boundary, samples // (small + 1), longer + (samples - boundary) // max(1, small))
        positions = np.empty_like(samples)
        for index in np.unique(partition):
            chosen = partition == index
            start, size = self._range(int(index))
            offsets = self._offsets_of_partition(int(index), size, samples[chosen] - start)
            positions[chosen] = offsets * self.partitions + index
        return positions

    def _map(self, positions: np.ndarray, of_partition) -> np.ndarray:
        assert positions.size == 0 or (positions.min() >= 0 and positions.max() < self.samples)
        partition, offset = positions % self.partitions, positions // self.partitions
        result = np.empty_like(positions)
        for index in np.unique(partition):
            chosen = partition == index
            start, size = self._range(int(index))
            result[chosen] = start + of_partition(int(index), size, offset[chosen])
        return result

    def _range(self, partition: int) -> tuple[int, int]:
        """(first sample, samples) of a partition."""
        small, longer = divmod(self.samples, self.partitions)
        return partition * small + min(partition, longer), small + (partition < longer)

    def _window_order(self, partition: int, size: int) -> counter_random.Permutation:
        return _permutation(-(-size // self.window), _WINDOW_ORDER, self.seed, self.epoch, partition)

    def _within(self, partition: int, window: int, size: int) -> counter_random.Permutation:
        length = min(self.window, size - window * self.window)
        return _permutation(length, _WITHIN_WINDOW, self.seed, self.epoch, partition, window)

    def _samples_of_partition(self, partition: int, size: int, offsets: np.ndarray) -> np.ndarray:
        window_order = self._window_order(partition, size)
        starts, ranks = self._ranks(window_order, size)
        rank = ranks(offsets)
        windows = window_order(rank)
        result = np.empty_like(offsets)
        for window in np.unique(windows):
            chosen = windows == window
            first = int(window) * self.window
            within = self._within(partition, int(window), size)
            result[chosen] = first + within(offsets[chosen] - starts(rank[chosen]))
        return result

    def _offsets_of_partition(self, partition: int, size: int, samples: np.ndarray) -> np.ndarray:
        window_order = self._window_order(partition, size)
        starts, _ = self._ranks(window_order, size)
        windows = samples // self.window
        result = np.empty_like(samples)
        for window in np.unique(windows):
            chosen = windows == window
            first = int(window) * self.window
            rank = window_order.inverse(np.asarray([window]))
            within = self._within(partition, int(window), size)
            result[chosen] = starts(rank) + within.inverse(samples[chosen] - first)
        return result

    def _ranks(self, window_order: counter_random.Permutation, size: int):
        """The starts of the windows in the permuted order, as functions; the last window of `size` may be short."""
        short = size - (window_order.size - 1) * self.window
        short_rank = int(window_order.inverse(np.asarray([window_order.size - 1]))[0])
        short_end = short_rank * self.window + short

        def starts(rank: np.ndarray) -> np.ndarray:
            return rank * self.window - np.where(rank > short_rank, self.window - short, 0)

        def ranks(offsets: np.ndarray) -> np.ndarray:
            return np.where(offsets < short_end, offsets // self.window, (offsets + self.window - short) // self.window)

        return starts, ranks


# A run: its epochs one after the other, its sources mixed by weight, and each rank's share of a batch.


@dataclass(frozen=True)
class Draw:
    """Samples in the order of a run: the source, the epoch of that source, and the sample of each, int64 arrays."""

    source: np.ndarray
    epoch: np.ndarray
    sample: np.ndarray

    def __len__(self) -> int:
        return len(self.sample)

    def __getitem__(self, chosen) -> "Draw":
        return Draw(self.source[chosen], self.epoch[chosen], self.sample[chosen])


class RunOrder:
    """The endless order of a run over one or several weighted sources.

    With several sources the run is cut into cycles of 1024 slots; in each cycle a source gets its share of the slots
    (largest remainder), at places drawn anew for every cycle. Within a source the order is that of its own epochs.

    Args:
        sizes: samples of each source.
        weights: relative weight of each source.
        partitions: number of partitions of each epoch.
        seed: run.seed.
    """

    def __init__(self, sizes: list[int], weights: list[float], partitions: int, seed: int):
        self.sizes, self.partitions, self.seed = sizes, partitions, seed
        self._shares = _largest_remainder(weights, MIXTURE_CYCLE)

    def draw(self, first: int, count: int) -> Draw:
        """The samples at run positions [first, first + count)."""
        return self._draw(np.arange(first, first + count, dtype=np.int64))

    def _draw(self, positions: np.ndarray) -> Draw:
        source, within = self._sources(positions)
        sizes = np.asarray(self.sizes, dtype=np.int64)[source]
        epoch, position = within // sizes, within % sizes
        sample = np.empty_like(positions)
        for index in np.unique(source):
            for number in np.unique(epoch[source == index]):
                chosen = (source == index) & (epoch == number)
                order = EpochOrder(
                    self.sizes[index], min(self.partitions, self.sizes[index]), self._seed_of(index), int(number)
                )
                sample[chosen] = order.sample_at(position[chosen])
        return Draw(source, epoch, sample)

    def share_of_rank(self, first: int, count: int, rank: int, world_size: int) -> Draw:
        """This rank's part of the global batch at [first, first + count): `count / world_size` samples.

        The batch is sorted by partition and cut into equal pieces, so that a rank meets the same partitions in every
        step; where world_size does not divide the partitions, neighbours share one.
        """
        return self.shares_of_rank(first, count, 1, rank, world_size)[0]

    def shares_of_rank(self, first: int, count: int, batches: int, rank: int, world_size: int) -> list[Draw]:
        """`share_of_rank` of so many batches, one behind the other: at once, for the cost lies in the calls."""
        starts = range(first, first + batches * count, count)
        positions = [self._positions_of_rank(start, count, rank, world_size) for start in starts]
        draw, share = self._draw(np.concatenate(positions)), count // world_size
        return [draw[number * share : (number + 1) * share] for number in range(batches)]

    def _positions_of_rank(self, first: int, count: int, rank: int, world_size: int) -> np.ndarray:
        assert count % world_size == 0
        positions = np.arange(first, first + count, dtype=np.int64)
        source, within = self._sources(positions)
        sizes = np.asarray(self.sizes, dtype=np.int64)[source]
        partition = (within % sizes) % np.minimum(self.partitions, sizes)
        ranked = np.argsort(partition, kind="stable")
        return positions[ranked[rank * count // world_size : (rank + 1) * count // world_size]]

    def _seed_of(self, source: int) -> int:
        return self.seed if len(self.sizes) == 1 else int(counter_random.key(_MIXTURE, self.seed, source))

    def _sources(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, position within that source's own endless order) of run positions."""
        if len(self.sizes) == 1:
            return np.zeros_like(positions), positions
        slots = np.repeat(np.arange(len(self.sizes)), self._shares)
        rank_in_source = np.concatenate([np.arange(share) for share in self._shares])
        source, within = np.empty_like(positions), np.empty_like(positions)
        cycles = positions // MIXTURE_CYCLE
        for cycle in np.unique(cycles):
            chosen = cycles == cycle
            shuffle = _permutation(MIXTURE_CYCLE, _MIXTURE, self.seed, len(self.sizes), int(cycle))
            slot = shuffle(positions[chosen] % MIXTURE_CYCLE)
            source[chosen] = slots[slot]
            within[chosen] = cycle * np.asarray(self._shares)[source[chosen]] + rank_in_source[slot]
        return source, within


def _largest_remainder(weights: list[float], slots: int) -> list[int]:
    if len(weights) > slots:
        raise UserError(f"data.train names {len(weights)} sources; at most {slots} can be mixed")
    exact = np.asarray(weights) / np.sum(weights) * slots
    shares = np.floor(exact).astype(int)
    for index in np.argsort(shares - exact, kind="stable")[: slots - int(shares.sum())]:
        shares[index] += 1
    if (shares == 0).any():
        index = int(np.argmin(shares))
        raise UserError(
            f"data.train[{index}].weight is below 1/{slots} of the sum of the weights, so it would never be read; "
            "raise it or leave the source out"
        )
    return shares.tolist()


def partitions_of(data: DataSection, batch_samples: int) -> int:
    return default_partitions(batch_samples) if data.partitions == "auto" else data.partitions
