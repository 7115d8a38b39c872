"""Bytes and operations of every Triton kernel, from the arguments of a launch.

What a program reads counts as often as the program walks over it, and rows that it gathers count each: nothing is taken
to be in a cache but what it holds at the moment, the rows of a block that a wavelet's taps share, and the angles of a
chunk. Blocks count in full, also where they stick out of a document.
"""

from collections.abc import Callable, Mapping
from math import prod

import torch

# Operations that an exponential counts as.
EXPONENTIAL = 8
INTEGER = 8  # bytes of an index
SECTOR = 32  # bytes that memory gives at least
# Of rows that a program wants again, a multiprocessor has kept so many bytes: V100 has caches of 128 KiB, A100 of 192.
CACHE = 1 << 17
Arguments = Mapping[str, object]
Work = Callable[[Arguments, tuple[int, ...], list[int] | None], tuple[int, int]]


def work_of(
    name: str, arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None = None
) -> tuple[int, int, str]:
    """Bytes, operations and their unit of one launch.

    Args:
        name: the kernel's.
        arguments: by their names, tensors and numbers, constants too.
        grid: programs in each direction.
        documents: lengths of all documents of the batch; None: each sample is one.

    Raises:
        ValueError: a kernel that stands not here.
    """
    if name not in WORK:
        raise ValueError(f"Triton kernel {name}: nobody has said what it reads and computes; add it to {__name__}")
    size, operations = WORK[name](arguments, grid, documents)
    wide = any(isinstance(each, torch.Tensor) and each.dtype == torch.float64 for each in arguments.values())
    return size, operations, "fp64" if wide else "fp32"


def _rounded(count: int, block: int) -> int:
    return -(-count // block) * block


# Attention from features: rows of all heads, in whole blocks of each document.


def _attention(
    features: int, width: int, integers: int, dots: Callable[[int, int, int], int], exponentials: int
) -> Work:
    """A kernel whose programs move `features` rows of features, `width` rows of channels and some bytes for each row.

    Args:
        dots: (rows of a block, features, channels) -> operations for each row.
        exponentials: of rows of features.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        query, value = arguments["query"], arguments["value"]
        batch, heads, positions, columns = query.shape
        channels = value.shape[3]
        block = arguments["ROWS"]
        lengths = documents or [positions] * batch
        computed = heads * sum(_rounded(length, block) for length in lengths)
        moved = batch * heads * positions * grid[1] if len(grid) > 1 else batch * heads * positions
        per_row = value.element_size() * (features * columns) + integers
        if arguments.get("ids") is not None:
            per_row += INTEGER
        size = moved * per_row + batch * heads * positions * channels * width * value.element_size()
        programs_of_channels = grid[1] if len(grid) > 1 else 1
        each = dots(block, arguments["FEATURES"], arguments["CHANNELS"])
        if arguments["LOGS"]:
            each += EXPONENTIAL * exponentials * arguments["FEATURES"]
        return size, computed * programs_of_channels * each

    return work


# Sweeps of rotations.


def _sweep(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs, blocks = grid
    positions, width = arguments["positions"], arguments["width"]
    chunk, channels = arguments["CHUNK"], arguments["CHANNELS"]
    sides = 2 if arguments["GRADIENT"] else 1
    tables = 1 + arguments["BEFORE"] + arguments["AFTER"]
    of_row = 8 * tables + INTEGER * (arguments["FROM"] + arguments["TO"])
    if arguments["GRADIENT"]:
        of_row += 4 * tables
    # Real and imaginary parts, read and written.
    size = pairs * positions * (16 * sides * width + blocks * of_row)
    of_chunk = 2 * sides * (2 * chunk * chunk * channels + 12 * chunk * channels) + 6 * chunk * chunk
    return size, pairs * blocks * -(-positions // chunk) * of_chunk


# Links: a slab of channels goes through all factors; its rows come from memory once for all links of a factor where the
# slab of a document is small enough for the cache, else once for each link.


def _gathered(arguments: Arguments, documents: list[int] | None, element: int, slabs: int = 1) -> int:
    """Bytes of the rows that one factor reads, its own and those that links lead to, in all slabs of channels.

    `slabs` of as many rows are wanted at the same time.
    """
    batch, positions, _ = arguments["shape"]
    row = slabs * arguments["CHANNELS"] * element
    found = sum(n * (1 if n * row <= CACHE else 1 + arguments["links"]) for n in documents or [positions] * batch)
    return found * _slab_row(arguments, element)


def _slab_row(arguments: Arguments, element: int) -> int:
    """Bytes of a row in all slabs."""
    return _rounded(arguments["width"], arguments["CHANNELS"]) * element


def _strided_row(arguments: Arguments, element: int) -> int:
    """Bytes of a row that is read or written where all channels lie next to each other, in whole sectors."""
    slabs = -(-arguments["width"] // arguments["CHANNELS"])
    return slabs * _rounded(arguments["CHANNELS"] * element, SECTOR)


def _of_links(arguments: Arguments, slabs: int) -> int:
    """Bytes that one factor's links take beside the rows that they lead to: weights, and documents of rows."""
    batch, positions, _ = arguments["shape"]
    documents = 0 if arguments["starts"] is None else 2 * arguments["starts"].element_size()
    return batch * positions * slabs * (arguments["links"] * arguments["weights"].element_size() + documents)


def _mix_all(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    value, factors = arguments["value"], arguments["factors"]
    arguments = {**arguments, "shape": value.shape}
    rows, element = prod(value.shape[:2]), value.element_size()
    copied = rows * (_strided_row(arguments, element) + _slab_row(arguments, element))
    written = rows * _slab_row(arguments, element)
    each = _gathered(arguments, documents, element) + written + _of_links(arguments, grid[1])
    computed, size = factors - 1, copied + (factors - 1) * each
    if arguments["result"] is not None:
        computed, size = factors, size + each - written + rows * _strided_row(arguments, element)
    return size, computed * 2 * rows * arguments["links"] * _slab_row(arguments, 1)


def _unmix_all(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    gradient, of_weights, factors = arguments["gradient"], arguments["of_weights"], arguments["factors"]
    low, high = arguments["low"], arguments["high"]
    arguments = {**arguments, "shape": gradient.shape}
    rows, element = prod(gradient.shape[:2]), gradient.element_size()
    row, strided = _slab_row(arguments, element), _strided_row(arguments, element)
    gathered = _gathered(arguments, documents, element, 1 + arguments["TOGETHER"])
    of_links = _of_links(arguments, grid[1])
    each = 2 * gathered + of_links + rows * row
    if not arguments["TOGETHER"]:
        # For the products alone the gradient's own rows and, without the weights, what links take.
        weights = rows * grid[1] * arguments["links"] * arguments["weights"].element_size()
        each += rows * row + of_links - weights
    size = (high - low) * each + of_weights.nbytes
    if high == factors:
        size += rows * (strided + row)
    if low == 0:
        size += rows * (strided - row)
    return size, (high - low) * 4 * rows * arguments["links"] * _slab_row(arguments, 1)


# Wavelets: a block of rows with those that its taps reach.


def _split(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    taps, block, channels = arguments["TAPS"], arguments["ROWS"], arguments["CHANNELS"]
    read = (2 * block + taps - 2) * arguments["rows"].element_size() + taps * arguments["filters"].element_size()
    written = block * (arguments["low"].element_size() + arguments["high"].element_size())
    return prod(grid) * channels * (read + written), prod(grid) * block * channels * 4 * taps


def _merge(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    taps, block, channels = arguments["TAPS"], arguments["ROWS"], arguments["CHANNELS"]
    bands = arguments["low"].element_size() + arguments["high"].element_size()
    read = (block + taps // 2 - 1) * bands + taps * arguments["filters"].element_size()
    written = 2 * block * arguments["rows"].element_size()
    return prod(grid) * channels * (read + written), prod(grid) * block * channels * 4 * taps


def _correlate(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    taps, block, channels = arguments["TAPS"], arguments["ROWS"], arguments["CHANNELS"]
    signal, rows, step = arguments["signal"], arguments["rows"], arguments["STEP"]
    blocks = arguments["batch"] * -(-arguments["count"] // block)
    read = block * signal.element_size() + (block * step + taps) * rows.element_size()
    _, groups, of_channels = grid
    size = blocks * groups * of_channels * channels * read + prod(grid) * taps * channels * 4
    return size, blocks * groups * of_channels * 2 * block * taps * channels


WORK: dict[str, Work] = {
    "whole_forward": _attention(2, 2, 0, lambda rows, m, d: 4 * m * d, 2),
    "whole_backward": _attention(5, 4, 0, lambda rows, m, d: 10 * m * d, 3),
    "causal_forward": _attention(2, 2, 0, lambda rows, m, d: 4 * m * d + 2 * rows * (m + d), 2),
    "causal_queries": _attention(5, 3, 16, lambda rows, m, d: 4 * m * d + rows * (6 * m + 4 * d), 2),
    "causal_keys": _attention(5, 4, 16, lambda rows, m, d: 6 * m * d, 2),
    "_sweep": _sweep,
    "mix_all": _mix_all,
    "unmix_all": _unmix_all,
    "_split": _split,
    "_merge": _merge,
    "_correlate": _correlate,
}
