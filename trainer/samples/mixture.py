"""Which source each sample of a run is from, where several are mixed by weight.

Pure functions of the run's seed and position, like the order within a source (see order.py).
"""

from functools import lru_cache
from typing import Protocol

import numpy as np

from longmix.data_prep.errors import UserError

from ..settings.shuffling import SMALLEST_DEFAULT_PARTITIONS, largest_divisor
from . import counter_random

# Slots after which the shares hold exactly, at least; also the most that are dealt out at once.
SMALLEST_CYCLE = 1024
# Cycles that are kept, as 16-bit numbers: those of many steps are looked up together, twice.
_KEPT = 1024
# Distinguishes the uses of one seed, here and in order.py and length_groups.py.
SOURCE, _PLACES, _TURNS = 3, 5, 6


class Mixture(Protocol):
    """Attributes: `ranges`, into how many ranges each source is cut."""

    ranges: list[int]

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, position within that source's own endless order) of run positions."""


class DealtMixture:
    """Several sources, of which every batch has its shares, and reads as many ranges as samples.

    A cycle's slots belong to the sources in turn, each its share (largest remainder), and lie in as many groups of
    neighbouring slots as there are partitions. So many positions of the run take one slot of each group. A batch of
    that many has of each source, and of all sources before it, its exact share rounded up or down; sorted by source, a
    rank's part of it begins at the same place of the same source in every step, give or take one.

    A source has as many ranges as it has samples in a batch, so that each batch meets all of them; small ones have 16,
    which keeps their samples from coming out of one place.

    Args:
        weights: relative weight of each source.
        partitions: ranges of all sources together.
        seed: run.seed.
    """

    def __init__(self, weights: list[float], partitions: int, seed: int):
        self._groups = largest_divisor(partitions, SMALLEST_CYCLE)
        self._turns = -(-SMALLEST_CYCLE // self._groups)
        self._cycle, self._seed = self._groups * self._turns, seed
        self._shares = np.asarray(_largest_remainder(weights, self._cycle))
        fewest = min(SMALLEST_DEFAULT_PARTITIONS, partitions)
        self.ranges = [max(fewest, partitions * share // self._cycle) for share in self._shares.tolist()]
        self._dealt = lru_cache(maxsize=_KEPT)(self._deal)

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        source, within = np.empty_like(positions), np.empty_like(positions)
        cycles, places = np.divmod(positions, self._cycle)
        for cycle in np.unique(cycles).tolist():
            chosen = cycles == cycle
            sources, earlier = self._dealt(cycle)
            source[chosen] = sources[places[chosen]]
            within[chosen] = cycle * self._shares[source[chosen]] + earlier[places[chosen]]
        return source, within

    def _deal(self, cycle: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each place of a cycle its source, and how many places before it that source has."""
        groups, turns = np.arange(self._groups), np.arange(self._turns)[:, None]
        # (turns, groups): which group each place takes a slot of, and which slot of it that turn is.
        group = counter_random.Permutation(self._groups, self._key(_PLACES, cycle, turns))(groups)
        taken = np.zeros_like(groups)[None]
        if self._turns > 1:
            taken = counter_random.Permutation(self._turns, self._key(_TURNS, cycle, groups))(turns)
        slot = (group * self._turns + np.take_along_axis(np.broadcast_to(taken, group.shape), group, 1)).ravel()
        source = np.searchsorted(np.cumsum(self._shares), slot, side="right")
        earlier = np.empty_like(source)
        earlier[np.argsort(source, kind="stable")] = _counted(self._shares)
        return source.astype(np.int16), earlier.astype(np.int16)

    def _key(self, use: int, cycle: int, part: np.ndarray) -> np.ndarray:
        return counter_random.key(use, self._seed, len(self._shares), cycle, part)


class DrawnMixture:
    """Of earlier versions: cycles of 1,024 slots, in which a source has its share at places drawn anew for each cycle.

    A source has the ranges that a single one would have. It fills fewer places of a batch than it has ranges, so the
    next batch begins at another range, and each rank comes to read all of them.
    """

    def __init__(self, weights: list[float], partitions: int, seed: int):
        self.ranges, self._seed = [partitions] * len(weights), seed
        self._shares = _largest_remainder(weights, SMALLEST_CYCLE)

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = np.repeat(np.arange(len(self._shares)), self._shares)
        rank_in_source = _counted(self._shares)
        source, within = np.empty_like(positions), np.empty_like(positions)
        cycles = positions // SMALLEST_CYCLE
        for cycle in np.unique(cycles):
            chosen = cycles == cycle
            shuffle = _order_of_slots(self._seed, len(self._shares), int(cycle))
            slot = shuffle(positions[chosen] % SMALLEST_CYCLE)
            source[chosen] = slots[slot]
            within[chosen] = cycle * np.asarray(self._shares)[source[chosen]] + rank_in_source[slot]
        return source, within


@lru_cache(maxsize=1024)
def _order_of_slots(seed: int, sources: int, cycle: int) -> counter_random.Permutation:
    return counter_random.Permutation(SMALLEST_CYCLE, counter_random.key(SOURCE, seed, sources, cycle))


def _counted(shares: list[int] | np.ndarray) -> np.ndarray:
    """0, 1, ... for each source, up to its share."""
    return np.concatenate([np.arange(share) for share in shares])


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
