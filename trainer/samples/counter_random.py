"""Random numbers as pure functions of (key, counter): no state, so no rank, worker or restart can change them.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(values: np.ndarray) -> np.ndarray:
    """A bijection of uint64 that sends neighbours far apart."""
    values = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        return values ^ (values >> np.uint64(31))


def key(*parts: int | np.ndarray) -> np.ndarray:
    """A uint64 key (an array of them, by broadcasting) from whole numbers, sensitive to each and to their order."""
    result = np.uint64(0)
    for part in parts:
        result = mix(result ^ mix(np.asarray(part).astype(np.uint64)))
    return result


def uniform(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1), one for each broadcast pair of key and counter."""
    with np.errstate(over="ignore"):
        bits = mix(np.asarray(keys, dtype=np.uint64) ^ mix(np.asarray(counters).astype(np.uint64)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Permutation:
    """A pseudo-random permutation of range(size): O(1) memory, O(1) time at any index, with its inverse.

    A Feistel network on the smallest even number of bits that holds `size`; indices that leave the range are sent
    through again until they come back (cycle walking; fewer than four rounds on average).

    Args:
        size: at least 1; or int64, of the shape of the indices: a permutation for each of them.
        permutation_key: uint64, of which permutation.
    """

    _ROUNDS = 6

    def __init__(self, size: int | np.ndarray, permutation_key: int | np.ndarray):
        sizes = np.asarray(size, dtype=np.int64)
        assert sizes.size == 0 or sizes.min() >= 1
        self._size = sizes.astype(np.uint64)
        bits = np.frexp((sizes - 1).astype(np.float64))[1]  # of the largest index
        self._half = np.maximum(1, (bits + 1) // 2).astype(np.uint64)
        self._low = (np.uint64(1) << self._half) - np.uint64(1)
        self._round_keys = [key(permutation_key, number) for number in range(self._ROUNDS)]

    def __call__(self, index: np.ndarray) -> np.ndarray:
        return self._walk(index, self._forward)

    def inverse(self, index: np.ndarray) -> np.ndarray:
        return self._walk(index, self._backward)

    def _walk(self, index: np.ndarray, once) -> np.ndarray:
        values = once(np.asarray(index).astype(np.uint64))
        outside = values >= self._size
        while outside.any():
            values = np.where(outside, once(values), values)
            outside = values >= self._size
        return values.astype(np.int64)

    def _forward(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._low
        for round_key in self._round_keys:
            left, right = right, left ^ (mix(right ^ round_key) & self._low)
        return (left << self._half) | right

    def _backward(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._low
        for round_key in reversed(self._round_keys):
            left, right = right ^ (mix(left ^ round_key) & self._low), left
        return (left << self._half) | right
