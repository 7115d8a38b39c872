"""The order of the samples: pure functions of (seed, epoch), independent of ranks, workers and restarts.

An epoch of n samples interleaves P partitions, contiguous ranges of the sample index whose sizes differ by at most one:
position p of the epoch lies in partition p mod P. Each partition is cut into windows of consecutive samples; the order
of the windows and the order within each are permuted anew every epoch. So an epoch is a bijection, any position is
found in O(1) time and memory, and a rank that takes whole partitions touches few shards at a time. Partitions go on to
their next windows at different steps, so that no step waits for all of them.
"""

from dataclasses import dataclass

import numpy as np

from ..settings.sections import EARLIER_ORDER, ORDER
from . import counter_random
from .mixture import SOURCE, DealtMixture, DrawnMixture, Mixture

# Distinguishes the uses of one seed, here and in mixture.py and length_groups.py.
_WINDOW_ORDER, _WITHIN_WINDOW = 1, 2


# One epoch of one data set: a permutation that is computed at any position, never stored.


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch of one data set.

    Attributes:
        window: samples of a partition shuffled among each other at a time.
        staggered: partition i begins within its first window, i-th of as many steps as there are partitions, and comes
            back to what it left out at the end; else all go on to their next window at once, as in earlier versions.
    """

    samples: int
    partitions: int
    window: int
    seed: int
    epoch: int
    staggered: bool = False

    def sample_at(self, positions: np.ndarray) -> np.ndarray:
        """Sample ids at positions of this epoch, both int64 in [0, samples)."""
        positions = np.asarray(positions, dtype=np.int64)
        assert positions.size == 0 or (positions.min() >= 0 and positions.max() < self.samples)
        partition, offset = positions % self.partitions, positions // self.partitions
        first, size = self._range(partition)
        offset = (offset + self._shift(partition)) % size
        windows, start_of, rank_of = self._windows(partition, size)
        rank = rank_of(offset)
        window = windows(rank)
        return first + window * self.window + self._within(partition, window, size)(offset - start_of(rank))

    def position_of(self, samples: np.ndarray) -> np.ndarray:
        """The inverse of `sample_at`."""
        samples = np.asarray(samples, dtype=np.int64)
        small, longer = divmod(self.samples, self.partitions)
        boundary = longer * (small + 1)
        partition = np.where(samples < boundary, samples // (small + 1), longer + (samples - boundary) // max(1, small))
        first, size = self._range(partition)
        windows, start_of, _ = self._windows(partition, size)
        window, index = np.divmod(samples - first, self.window)
        offset = start_of(windows.inverse(window)) + self._within(partition, window, size).inverse(index)
        return (offset - self._shift(partition)) % size * self.partitions + partition

    # Arrays in these have one entry for each position that is asked for.

    def _range(self, partition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(first sample, samples) of partitions."""
        small, longer = divmod(self.samples, self.partitions)
        return partition * small + np.minimum(partition, longer), small + (partition < longer)

    def _shift(self, partition: np.ndarray) -> np.ndarray:
        """How far into its first window a partition begins."""
        return partition * self.window // self.partitions if self.staggered else np.zeros_like(partition)

    def _windows(self, partition: np.ndarray, size: np.ndarray):
        """The order of a partition's windows, and two functions: where the window of a rank starts in that order, and
        the rank of the window at an offset. The last of the `size` samples' windows may be short.
        """
        count = -(-size // self.window)
        order = self._permutation(count, _WINDOW_ORDER, partition)
        missing, short_rank = count * self.window - size, order.inverse(count - 1)
        short_end = (short_rank + 1) * self.window - missing

        def start_of(rank: np.ndarray) -> np.ndarray:
            return rank * self.window - np.where(rank > short_rank, missing, 0)

        def rank_of(offset: np.ndarray) -> np.ndarray:
            return np.where(offset < short_end, offset, offset + missing) // self.window

        return order, start_of, rank_of

    def _within(self, partition: np.ndarray, window: np.ndarray, size: np.ndarray) -> counter_random.Permutation:
        length = np.minimum(self.window, size - window * self.window)
        return self._permutation(length, _WITHIN_WINDOW, partition, window)

    def _permutation(self, size: np.ndarray, use: int, *parts: np.ndarray) -> counter_random.Permutation:
        return counter_random.Permutation(size, counter_random.key(use, self.seed, self.epoch, *parts))


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

    Within a source the order is that of its own epochs; mixture.py says how several are mixed.

    Args:
        sizes: samples of each source.
        weights: relative weight of each source.
        partitions: number of partitions of each epoch, of all sources together.
        window: consecutive samples of a partition that are shuffled among each other at a time.
        seed: run.seed.
        version: which order; EARLIER_ORDER is that of runs of earlier versions.
    """

    def __init__(
        self, sizes: list[int], weights: list[float], partitions: int, window: int, seed: int, version: int = ORDER
    ):
        self.sizes, self.partitions, self.window, self.seed, self.version = sizes, partitions, window, seed, version
        mixture = DrawnMixture if version == EARLIER_ORDER else DealtMixture
        self._mixture: Mixture | None = mixture(weights, partitions, seed) if len(sizes) > 1 else None
        ranges = self._mixture.ranges if len(sizes) > 1 else [partitions]
        # A source's own partitions: no more than it has samples.
        self._ranges = np.minimum(ranges, sizes)

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
                    self.sizes[index],
                    int(self._ranges[index]),
                    self.window,
                    self._seed_of(index),
                    int(number),
                    self.version != EARLIER_ORDER,
                )
                sample[chosen] = order.sample_at(position[chosen])
        return Draw(source, epoch, sample)

    def share_of_rank(self, first: int, count: int, rank: int, world_size: int) -> Draw:
        """This rank's part of the global batch at [first, first + count): `count / world_size` samples.

        The batch is sorted by source and partition and cut into equal pieces, so that a rank meets the same partitions
        in every step; where world_size does not divide the partitions, neighbours share one.
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
        partition = (within % sizes) % self._ranges[source]
        # Earlier versions kept no source together.
        keys = (partition,) if self.version == EARLIER_ORDER else (partition, source)
        ranked = np.lexsort(keys)
        return positions[ranked[rank * count // world_size : (rank + 1) * count // world_size]]

    def _seed_of(self, source: int) -> int:
        return self.seed if len(self.sizes) == 1 else int(counter_random.key(SOURCE, self.seed, source))

    def _sources(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, position within that source's own endless order) of run positions."""
        return (np.zeros_like(positions), positions) if self._mixture is None else self._mixture(positions)
