"""Batches of samples of similar length: padding, which costs time and teaches nothing, is saved.

The order of the run is cut into groups of a few batches. Within a group, samples are sorted by length and cut into
batches, which then come in a random order. So a group holds the samples that it would hold without, every batch is a
pure function of (seed, step), and nothing depends on ranks or restarts.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..settings.sections import ORDER
from . import counter_random
from .order import Draw, RunOrder

# As transformers' LengthGroupedSampler: large groups save more padding, and four in an epoch keep batches random.
MOST_BATCHES = 50
GROUPS_OF_AN_EPOCH = 4
# Groups in memory; ranks that compare their orders ask for one that has just been used.
_KEPT = 4
# Distinguishes this use of the seed from those of order.py and mixture.py.
_BATCHES = 4

# Lengths (n,) of the samples (n,) of one source.
Lengths = Callable[[int, np.ndarray], np.ndarray]


def batches_of_a_group(samples: int, batch_samples: int) -> int:
    """Batches among which samples are sorted by length, in a run over `samples` samples."""
    return max(1, min(MOST_BATCHES, samples // (GROUPS_OF_AN_EPOCH * batch_samples)))


class LengthGroupedOrder(RunOrder):
    """A RunOrder whose batches hold samples of similar length.

    Args:
        batch_samples: samples of a global batch.
        lengths: gives the lengths of samples; it reads those of one group at a time.

    The other arguments are RunOrder's.
    """

    def __init__(
        self,
        sizes: list[int],
        weights: list[float],
        partitions: int,
        window: int,
        seed: int,
        batch_samples: int,
        lengths: Lengths,
        version: int = ORDER,
    ):
        super().__init__(sizes, weights, partitions, window, seed, version)
        self._batch, self._lengths = batch_samples, lengths
        self._batches = batches_of_a_group(sum(sizes), batch_samples)
        self._sorted = lru_cache(maxsize=_KEPT)(self._sort)

    def _positions_of_rank(self, first: int, count: int, rank: int, world_size: int) -> np.ndarray:
        """This rank's part of the global batch at [first, first + count): a range of its lengths."""
        assert count % world_size == 0
        share = count // world_size
        return np.arange(first + rank * share, first + (rank + 1) * share, dtype=np.int64)

    def _draw(self, positions: np.ndarray) -> Draw:
        size = self._batches * self._batch
        groups, within = positions // size, positions % size
        places = np.empty_like(positions)
        for group in np.unique(groups).tolist():
            chosen = groups == group
            shuffle = counter_random.Permutation(
                self._batches, int(counter_random.key(_BATCHES, self.seed, self._batches, group))
            )
            batch, slot = divmod(within[chosen], self._batch)
            places[chosen] = group * size + self._sorted(group)[shuffle(batch) * self._batch + slot]
        return super()._draw(places)

    def _sort(self, group: int) -> np.ndarray:
        """The places of a group's samples within it, from the shortest sample to the longest.

        Where an epoch ends within the group, its samples come before those of the next one: else both copies of a
        sample, which are equally long, would meet in one batch.
        """
        size = self._batches * self._batch
        draw = super()._draw(np.arange(group * size, (group + 1) * size, dtype=np.int64))
        lengths, epochs = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        for source in np.unique(draw.source).tolist():
            chosen = draw.source == source
            lengths[chosen] = self._lengths(source, draw.sample[chosen])
            epochs[chosen] = draw.epoch[chosen] - draw.epoch[chosen].min()
        return np.lexsort((lengths, epochs))
