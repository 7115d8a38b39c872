"""Bytes and operations of every Triton kernel, from the arguments of a launch.

What a program reads counts as often as the program walks over it, and rows that it gathers count each: nothing is taken
to be in a cache but what it holds at the moment, the rows of a block that a wavelet's taps share, the angles of a
chunk, the rows that the places of near attention share, the projection that random features are made with, which a
program reads once for all of its blocks, and for all links of a factor a slab that fits into CACHES. Blocks count in
full, also where they stick out of a document.
"""

from math import prod

import torch

from . import attention_work
from .work_units import EXPONENTIAL, INTEGER, Arguments, Work, rounded

SECTOR = 32  # bytes that memory gives at least
# Of rows that a program wants again, a multiprocessor has kept so many bytes: V100 (sm_70) has 128 KiB and A100 192, of
# which programs take up to 8 KiB to exchange values.
CACHES = {70: 120 << 10, 80: 184 << 10}


def work_of(
    name: str,
    arguments: Arguments,
    grid: tuple[int, ...],
    documents: list[int] | None = None,
    capability: int = 80,
) -> tuple[int, int, str]:
    """Bytes, operations and their unit of one launch.

    Args:
        name: the kernel's.
        arguments: by their names, tensors and numbers, constants too.
        grid: programs in each direction.
        documents: lengths of all documents of the batch; None: each sample is one.
        capability: of the card, in CACHES.

    Raises:
        ValueError: a kernel that stands not here.
    """
    if name not in WORK:
        raise ValueError(f"Triton kernel {name}: nobody has said what it reads and computes; add it to {__name__}")
    size, operations = WORK[name]({**arguments, "cache": CACHES[capability]}, grid, documents)
    wide = any(isinstance(each, torch.Tensor) and each.dtype == torch.float64 for each in arguments.values())
    rule = arguments.get("RULE")
    if name == "make_features":  # multiplies nothing else
        rule = arguments["query"].RULE.value
    if rule == "tf32x3":
        operations *= 3
    return size, operations, "fp64" if wide else "tf32" if rule in ("tf32", "tf32x3") else "fp32"


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


# Rotations of one order, chunk by chunk: rows of a head, and what chunks hand to each other in each of the four sweeps.

SWEEPS = 4
COMPLEX = 8  # bytes of a number that is handed on


def _of_chunks(values: int, inflows: int, of_row: int, dots: int) -> Work:
    """A kernel whose programs move some values and numbers of each row, and carries of each chunk.

    Args:
        values: how many are read and written.
        inflows: how many tensors of carries are.
        of_row: bytes of tables and sums.
        dots: of a chunk's matrix with its rows, of a real or imaginary part.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        pairs, chunks, blocks = grid
        width, chunk, channels = arguments["width"], arguments["CHUNK"], arguments["CHANNELS"]
        rows = pairs * arguments["positions"]
        size = rows * (2 * values * width * arguments["value"].element_size() + blocks * of_row)
        size += pairs * chunks * inflows * SWEEPS * width * COMPLEX
        each = 2 * dots * chunk * channels * (2 * chunk + 12) + 12 * chunk * chunk
        return size, pairs * chunks * blocks * each

    return work


def _find_terms(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs, chunks = grid
    width, chunk = arguments["width"], arguments["CHUNK"]
    size = pairs * arguments["positions"] * (2 * width * arguments["value"].element_size() + 40)
    size += pairs * chunks * SWEEPS * width * COMPLEX
    # The weights of four sums, of which a matrix of a chunk's rows has room for, go back through three sweeps.
    each = 2 * 3 * chunk * chunk * (2 * chunk + 12) + 12 * chunk * chunk
    each += 4 * 2 * chunk * chunk * rounded(width, arguments["CHANNELS"])
    if arguments["COUPLED"]:
        size += pairs * chunks * 4 * arguments["COUPLINGS"]
        each += 4 * chunk * chunk
    return size, pairs * chunks * each


def _find_inflows(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs, blocks = grid
    block, channels = arguments["ROWS"], arguments["CHANNELS"]
    # Each sweep reads the terms and what the ones before it have found, and writes; couplings go with each block.
    moved = sum(2 + before for before in range(SWEEPS)) * arguments["width"] * COMPLEX
    couplings = 4 * (2 * SWEEPS + 2 * sum(range(SWEEPS)))
    size = pairs * arguments["chunks"] * (moved + blocks * couplings)
    # A scan joins each chunk with twice the logarithm of their number, at most, in five operations.
    each = SWEEPS * block * channels * (2 * 5 * block.bit_length() + 28)
    return size, pairs * blocks * -(-arguments["chunks"] // block) * each


def _make_tables(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs, shares = grid
    rows, upper, lower, terms = arguments["rows"], arguments["upper"], arguments["lower"], arguments["count"]
    # Three angles of a row lie apart from the next row's. What is behind a share is read once more.
    read, once = sum(rounded(3 * angles.element_size(), SECTOR) for angles in (upper, lower)), SECTOR
    if arguments["ranges"] is not None:
        read, once = _of_token(upper) + (arguments["begins"] is not None), arguments["turns"].element_size()
    size = pairs * rows * (read * (1 + (shares - 1) / 2) + once + 4 * arguments["TABLES"])
    return round(size), pairs * rows * (arguments["TABLES"] * EXPONENTIAL + 32 + 4 * terms)


def _angle_gradients(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs, shares = grid
    positions, blocks, of_upper = arguments["positions"], arguments["BLOCKS"], arguments["of_upper"]
    read = 4 * blocks * (arguments["ANGLES"] + 1 + (shares - 1))
    moved = (
        3 * of_upper.element_size() + 3 * arguments["of_lower"].element_size() + arguments["of_phase"].element_size()
    )
    each = 32
    if arguments["ranges"] is not None:
        read += arguments["turns"].element_size() + (arguments["begins"] is not None)
        moved, each = _of_token(of_upper), each + 2 * EXPONENTIAL + 6 * arguments["count"]
    return round(pairs * positions * (read + moved)), pairs * positions * each


def _of_token(drawn: torch.Tensor) -> float:
    """Bytes that memory moves, on the mean, for the numbers of a token in one head: they begin anywhere in a sector."""
    element = drawn.element_size()
    return 6 * element + SECTOR


# Links: a slab of channels goes through all factors; its rows come from memory once for all links of a factor where the
# slab of a document is small enough for the cache, else once for each link.


def _gathered(arguments: Arguments, documents: list[int] | None, element: int) -> int:
    """Bytes of the rows that one factor reads, its own and those that links lead to, in all slabs of channels."""
    batch, positions, _ = arguments["shape"]
    row = _channels(arguments) * element
    once = arguments["cache"] // row  # rows of the longest document that a cache holds
    found = sum(n * (1 if n <= once else 1 + arguments["links"]) for n in documents or [positions] * batch)
    return found * _slab_row(arguments, element)


def _channels(arguments: Arguments) -> int:
    """Of a slab."""
    return arguments["GROUPS"] * arguments["WIDE"]


def _slab_row(arguments: Arguments, element: int) -> int:
    """Bytes of a row in all slabs."""
    return rounded(arguments["width"], _channels(arguments)) * element


def _strided_row(arguments: Arguments, element: int) -> int:
    """Bytes of a row that is read or written where all channels lie next to each other, in whole sectors."""
    slabs = -(-arguments["width"] // _channels(arguments))
    return slabs * rounded(_channels(arguments) * element, SECTOR)


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
    # The gradient's rows are gathered; those of the factor's input, and the new gradient's, are passed once.
    each = _gathered(arguments, documents, element) + _of_links(arguments, grid[1]) + 2 * rows * row
    size = (high - low) * each + of_weights.nbytes
    if high == factors:
        size += rows * (strided + row)
    if low == 0:
        size += rows * (strided - row)
    return size, (high - low) * 4 * rows * arguments["links"] * _slab_row(arguments, 1)


# Around Fourier transforms: blocks of rows and channels, read and written once; of complex numbers, those of a block of
# a segment's channels, in one walk over the samples.


def _rows_of(names: tuple[str, ...], beside: tuple[str, ...], means: int) -> Work:
    """A kernel that moves rows of all channels of some tensors, more of them where x stands beside the result, and rows
    of `means` numbers for each segment.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        rows, features = grid[2] * arguments["positions"], arguments["features"]
        moved = (*names, *(beside if arguments.get("BESIDE") else ()))
        size = rows * features * sum(arguments[name].element_size() for name in moved)
        if means:
            size += rows * (features // arguments["width"]) * 4 * means
        return size, rows * features

    return work


def _of_bins(products: int) -> Work:
    """A kernel that moves transforms of all channels and of segments, and the response, and does so many products."""

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        channels = arguments["transformed"].shape[1] * arguments["width"]
        bins, samples = arguments["bins"], arguments["samples"]
        number = 2 * arguments["transformed"].element_size()
        blocks = grid[1]  # of channels, each with the transforms of its segment
        size = (
            samples * bins * number * (channels + blocks) + channels * bins * 2 * arguments["response"].element_size()
        )
        if "of_response" in arguments:
            size += samples * bins * number * blocks + channels * bins * 2 * arguments["of_response"].element_size()
        return size, samples * channels * bins * products

    return work


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
    taps, channels = arguments["TAPS"], arguments["CHANNELS"]
    low, high, rows = (arguments[name].element_size() for name in ("low", "high", "rows"))
    chunks, groups, of_channels = grid
    # Each chunk's rows, with those that its last taps reach, and what it sums up of both bands.
    computed = arguments["batch"] * rounded(arguments["count"], arguments["STEP"])
    read = computed * (low + high + 2 * rows) + chunks * taps * rows
    summed = 2 * chunks * taps * arguments["parts"].element_size()
    return groups * of_channels * channels * (read + summed), groups * of_channels * channels * computed * 4 * taps


# Rotary positions: all heads are read and written once, and the angles of each token.


def _turn_heads(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    pairs = arguments["tokens"] * arguments["HALF"]
    size = 2 * arguments["projected"].nbytes + 2 * pairs * arguments["cosine"].element_size()
    return size, 2 * 6 * pairs * arguments["heads"]


# Lifting: a program reads the rows of its strip, and those beside it that the next step reads too; what it has made, or
# read for the step before, a few blocks ago is still in a cache.


def _lift(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    element = _element_sizes(arguments)
    taps, others = arguments["TAPS"], arguments["OTHER_TAPS"]
    strip, beside = arguments["strip"], others - 1 if arguments["BOTH"] else 0
    rows = strip + beside
    size = rows * (element["rows"] + element["made"]) + (rows + taps - 1) * element["source"]
    each = 0 if arguments["FIXED"] else EXPONENTIAL
    operations = rows * (2 * taps + each)
    if arguments["BOTH"]:
        size += strip * (element["others"] + element["result"])
        operations += strip * (2 * others + each)
    if not arguments["FIXED"]:
        size += (taps + (others if arguments["BOTH"] else 0)) * element["taps"]
    return prod(grid) * arguments["CHANNELS"] * size, prod(grid) * arguments["CHANNELS"] * operations


def _unlift(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    element = _element_sizes(arguments)
    taps, others, undoes = arguments["TAPS"], arguments["OTHER_TAPS"], arguments["UNDOES"]
    strip = arguments["strip"]
    middle = strip + others - 1
    rows = middle + max(taps, 1 if undoes == "none" else others) - 1
    size = rows * (element["gradient"] + element["of_sum"]) + (rows + taps - 1) * element["source"]
    size += middle * (element["others"] + element["passed"] + element["of_other_sum"]) + strip * element["result"]
    if undoes == "none":
        size += (middle + others - 1) * element["other_source"]
    else:
        size += rows * (element["low"] + element["other_source"])
        size += middle * element["undone"] if undoes == "both" else 0
    size += (taps + others) * (element["taps"] + element["parts"])
    # Both make their sums again, and those of the gradients of taps; the other one hands on twice.
    operations = rows * (4 * taps + EXPONENTIAL) + middle * (4 * others + 2 * taps + EXPONENTIAL) + strip * 2 * others
    return prod(grid) * arguments["CHANNELS"] * size, prod(grid) * arguments["CHANNELS"] * operations


def _element_sizes(arguments: Arguments) -> dict[str, int]:
    return {name: each.element_size() for name, each in arguments.items() if isinstance(each, torch.Tensor)}


WORK: dict[str, Work] = {
    "_sweep": _sweep,
    "make_tables": _make_tables,
    "find_terms": _find_terms,
    "find_inflows": _find_inflows,
    "mix_chunks": _of_chunks(2, 1, 40, 4),
    "unmix_chunks": _of_chunks(3, 2, 60, 8),
    "angle_gradients": _angle_gradients,
    **attention_work.WORK,
    "mix_all": _mix_all,
    "unmix_all": _unmix_all,
    "segment_means": _rows_of(("x",), (), 1),
    "apply_response": _of_bins(6),
    "finish_rows": _rows_of(("filtered", "result"), ("x", "result"), 0),
    "turn_rows": _rows_of(("gradient", "rows"), (), 0),
    "correlate": _of_bins(16),
    "spread_means": _rows_of(("of_x",), ("gradient",), 1),
    "_split": _split,
    "_merge": _merge,
    "_correlate": _correlate,
    "turn_heads": _turn_heads,
    "lift": _lift,
    "unlift": _unlift,
}
