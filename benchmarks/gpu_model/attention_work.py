"""Bytes and operations of the Triton kernels of attentions; see triton_work.py."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from .work_units import EXPONENTIAL, INTEGER, Arguments, Work, rounded

MADE_AT_ONCE = 16  # channels of queries and keys of which a program makes random features
LOGARITHMIC = ("logarithms", "made")  # kinds of features that are summed up on the scale of their peaks

# Attention from features: rows of all heads, in whole blocks of each document. Features lie in memory, or are made
# wherever a kernel reads them: random ones of queries, keys and biases, others of queries and keys one by one.


@dataclass(frozen=True)
class _Features:
    """Rows of features that a kernel moves: some of queries and keys, read as often, and others beside them."""

    queries: int = 0
    keys: int = 0
    others: int = 0

    def sources(self, arguments: Arguments) -> list[tuple[object, int]]:
        found = (("query", self.queries), ("key", self.keys))
        return [(arguments[name], times) for name, times in found if times]

    def dtype(self, arguments: Arguments) -> torch.dtype:
        source, _ = self.sources(arguments)[0]
        if arguments.get("KIND") == "mapped":
            return torch.promote_types(source.rows.dtype, torch.float32)
        return getattr(source, "projection", source).dtype

    def of_row(self, arguments: Arguments) -> int:
        """Bytes for each row and block of channels."""
        if arguments.get("KIND") == "mapped":
            moved = self.sources(arguments)
            if self.others:  # gradients; their rows are in the cache
                moved.append((arguments["of_query" if self.queries else "of_key"], self.others))
            return sum(times * arguments["features"] * each.rows.element_size() for each, times in moved)
        row = self.dtype(arguments).itemsize * arguments["features"]
        size = self.others * row
        for source, times in self.sources(arguments):
            if isinstance(source, torch.Tensor):
                size += times * row
                continue
            size += times * source.width * source.rows.element_size()
            if source.bias is not None:
                size += times * (row + (0 if source.positions is None else INTEGER))
        return size

    def of_program(self, arguments: Arguments) -> int:
        """Bytes of the projection."""
        made = [(source, times) for source, times in self.sources(arguments) if hasattr(source, "projection")]
        return sum(
            times * arguments["features"] * source.width * source.projection.element_size() for source, times in made
        )

    def operations(self, arguments: Arguments) -> int:
        """For each row, to make features: three products for one where tensor cores keep fp32's digits, but one beside
        products in fp32, which is what these would take.
        """
        count = 0
        for source, times in self.sources(arguments):
            if arguments.get("KIND") == "mapped":
                count += times * EXPONENTIAL * arguments["FEATURES"]
            elif hasattr(source, "projection"):
                products = 3 if arguments.get("RULE") == "tf32" else 1
                count += 2 * times * products * arguments["FEATURES"] * rounded(source.width, MADE_AT_ONCE)
        return count


def _attention(
    features: _Features, width: int, integers: int, dots: Callable[[int, int, int], int], exponentials: int
) -> Work:
    """A kernel whose programs move `width` rows of channels and some bytes for each row beside its features.

    Args:
        dots: (rows of a block, features, channels) -> operations for each row.
        exponentials: of rows of features.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        value = next(arguments[name] for name in ("value", "gradient") if name in arguments)
        batch, heads, positions, channels = value.shape
        block = arguments["ROWS"]
        lengths = documents or [positions] * batch
        computed = heads * sum(rounded(length, block) for length in lengths)
        per_row = features.of_row(arguments) + integers
        if arguments.get("ids") is not None:
            # A piece of rows that begins inside a document looks for its end.
            per_row += INTEGER * (2 if grid[2] > 1 else 1)
        size = batch * heads * positions * (grid[1] * per_row + channels * width * value.element_size())
        size += prod(grid) * features.of_program(arguments)
        each = dots(block, arguments["FEATURES"], arguments["CHANNELS"]) + features.operations(arguments)
        if arguments["KIND"] in LOGARITHMIC:
            each += EXPONENTIAL * exponentials * arguments["FEATURES"]
        return size, computed * grid[1] * each

    return work


@dataclass(frozen=True)
class _Rows:
    """What a kernel does with some of its rows: features and so many rows of channels that it moves, their products
    with a state, and exponentials of rows of features.
    """

    features: _Features
    width: int
    products: int
    exponentials: int

    def work(self, arguments: Arguments, blocks: int, channels: int, rows: int, computed: int) -> tuple[int, int]:
        """Bytes and operations of so many rows, which are these in whole blocks."""
        narrow = arguments["value"].element_size()
        each = 2 * self.products * arguments["FEATURES"] * arguments["CHANNELS"] + self.features.operations(arguments)
        if arguments["KIND"] in LOGARITHMIC:
            each += EXPONENTIAL * self.exponentials * arguments["FEATURES"]
        size = rows * (blocks * self.features.of_row(arguments) + channels * self.width * narrow)
        return size, computed * blocks * each


def _documents(
    every: _Rows | None = None, alone: _Rows | None = None, over: _Rows | None = None, own: int = 0, of_all: int = 0
) -> Work:
    """A kernel whose programs walk over the documents of their piece of a head.

    Args:
        every: what it does with all rows.
        alone: and with those of documents that lie in one piece.
        over: and with those of the others, of which each piece has a share.
        own: states (M, D) that it reads or writes of each share.
        of_all: and of each piece of the share's document.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        batch, heads, positions, channels = arguments["value"].shape
        found = _shares(documents or [positions] * batch, positions, arguments["rows_of_piece"])
        alike = {
            every: [rows for rows, _ in found],
            alone: [rows for rows, pieces in found if pieces == 1],
            over: [rows for rows, pieces in found if pieces > 1],
        }
        size = operations = 0
        for kind, shares in alike.items():
            if kind is not None:
                computed = heads * sum(rounded(rows, arguments["ROWS"]) for rows in shares)
                moved, done = kind.work(arguments, grid[1], channels, heads * sum(shares), computed)
                size += moved + prod(grid) * kind.features.of_program(arguments)
                operations += done
        if arguments["ids"] is not None:
            # Where a share ends inside a block, the next one reads this again.
            size += heads * grid[1] * (batch * positions + len(found) * arguments["ROWS"]) * INTEGER
        states = sum(own + of_all * pieces for _, pieces in found if pieces > 1)
        kind = next(kind for kind in alike if kind is not None)
        return size + heads * grid[1] * states * _state(kind.features, arguments), operations

    return work


def _shares(documents: list[int], positions: int, rows: int) -> list[tuple[int, int]]:
    """Rows of every document in each piece of so many rows, and how many pieces the document goes over."""
    found, taken = [], 0
    for length in documents:
        begin = taken % positions
        pieces = range(begin // rows, (begin + length - 1) // rows + 1)
        ends = [min(begin + length, (piece + 1) * rows) for piece in pieces]
        starts = [max(begin, piece * rows) for piece in pieces]
        found += [(end - start, len(pieces)) for start, end in zip(starts, ends, strict=True)]
        taken += length
    return found


def _pieces(features: _Features, width: int, states: int, reads_all: int, dots: int, exponentials: int) -> Work:
    """A kernel of heads that are cut into pieces, whose programs move features and some rows of channels.

    Args:
        states: how many states (M, D) each program reads or writes of its own.
        reads_all: how many it reads of every piece.
        dots: products of a row with a state.
        exponentials: of rows of features.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        heads, blocks, pieces = grid
        narrow = next(arguments[name].element_size() for name in ("value", "gradient", "result") if name in arguments)
        rows = heads * arguments["positions"]
        size = rows * (features.of_row(arguments) * blocks + narrow * width * arguments["width"])
        state = _state(features, arguments)
        size += prod(grid) * ((states + reads_all * pieces) * state + features.of_program(arguments))
        each = 2 * dots * arguments["FEATURES"] * arguments["CHANNELS"] + features.operations(arguments)
        if arguments["KIND"] in LOGARITHMIC:
            each += EXPONENTIAL * exponentials * arguments["FEATURES"]
        return size, prod(grid) * rounded(arguments["rows"], arguments["ROWS"]) * each

    return work


def _state(features: _Features, arguments: Arguments) -> int:
    """Bytes of a state, with its sums and peaks of keys."""
    return arguments["FEATURES"] * (arguments["CHANNELS"] + 2) * features.dtype(arguments).itemsize


def _causal(features: _Features, *others: object, is_reader: bool) -> Work:
    """A causal kernel that moves rows as `_attention` says, and where a head is cut into pieces one state of each, or
    as a reader those of the pieces on one side of its own: half of them.
    """
    rows = _attention(features, *others)

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        size, operations = rows(arguments, grid, documents)
        pieces = grid[2]
        if pieces > 1:
            states = prod(grid) * _state(features, arguments)
            size += states * (pieces - 1) // 2 if is_reader else states
        return size, operations

    return work


# Attention to the nearest tokens: rows of the places are in a multiprocessor's cache but for those of the first one.


def _near(queries: int, values: int, sums: int, dots: int) -> Work:
    """A kernel whose programs move some tensors of queries or keys and of values, and `sums` numbers of each row.

    Args:
        dots: products of a row with one of a place, or sums of such.
    """

    def work(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
        pairs, blocks = grid
        element = arguments["value"].element_size()
        rows = pairs * arguments["positions"]
        moved = (queries * arguments["width"] + values * arguments["channels"]) * element
        size = rows * (moved + sums * arguments["sizes"].element_size())
        if arguments["ids"] is not None:
            size += rows * INTEGER
        block = arguments["ROWS"]
        if "parts" in arguments:
            size += pairs * blocks * (arguments["places"] + 1) * arguments["sizes"].element_size()
        each = block * (dots * (arguments["WIDTH"] + arguments["CHANNELS"]) + EXPONENTIAL)
        return size, pairs * blocks * arguments["places"] * each

    return work


def _add_parts(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    parts = prod(grid) * arguments["count"]
    return parts * arguments["parts"].element_size() + prod(grid) * arguments["of_bias"].element_size(), parts


# Random features: a program holds the projection for all of its rows.


def _make_features(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    features, rows, blocks = _Features(1, 1), grid[0] * arguments["positions"], grid[2]
    written = 2 * arguments["features"] * features.dtype(arguments).itemsize
    of_rows = sum(each.width * each.rows.element_size() for each, _ in features.sources(arguments))
    # Every block of features reads the rows again, and its own share of biases and of the projection.
    size = rows * (features.of_row(arguments) + (blocks - 1) * of_rows + written)
    size += grid[0] * grid[1] * features.of_program(arguments)
    computed = grid[0] * rounded(arguments["positions"], arguments["ROWS"])
    return size, computed * blocks * features.operations(arguments)


def _unmake_features(arguments: Arguments, grid: tuple[int, ...], documents: list[int] | None) -> tuple[int, int]:
    features, width, block = arguments["features"], arguments["width"], arguments["ROWS"]
    element, narrow = arguments["of_key_logs"].element_size(), arguments["key"].element_size()
    tokens, blocks = arguments["key"].shape[0] * arguments["heads"] * arguments["count"], grid[2]
    of_tokens = 2 * arguments["of_key"].element_size() + narrow
    size = tokens * (2 * features * element + blocks * width * of_tokens)
    places = grid[0] * arguments["places"]
    if arguments["of_query_bias"] is not None:
        size += arguments["shares"] * 2 * places * features * element
    computed = grid[0] * rounded(arguments["places"], block) * arguments["samples"]
    if arguments["order"] is not None:
        size += blocks * (tokens + 2 * places) * INTEGER
        # A block of places takes as many turns as its first place has tokens.
        lengths = documents or [arguments["count"]] * arguments["key"].shape[0]
        computed = arguments["heads"] * sum(rounded(length, block) for length in lengths)
    if arguments["lengths"] is not None:
        size += blocks * tokens * INTEGER
    size += grid[0] * grid[1] * features * width * element
    return size, computed * 4 * blocks * arguments["WIDTH"] * arguments["FEATURES"]


WORK: dict[str, Work] = {
    "document_sums": _documents(over=_Rows(_Features(0, 1), 1, 1, 1), own=1),
    "whole_forward": _documents(_Rows(_Features(1), 1, 1, 1), _Rows(_Features(0, 1), 1, 1, 1), of_all=1),
    "whole_backward": _documents(
        _Rows(_Features(1, 0, 1), 1, 2, 1), _Rows(_Features(0, 2, 1), 3, 3, 2), own=1, of_all=1
    ),
    "document_keys": _documents(over=_Rows(_Features(0, 1, 1), 2, 2, 1), of_all=1),
    "piece_sums": _pieces(_Features(0, 1), 1, 1, 0, 1, 1),
    "piece_forward": _pieces(_Features(1, 0), 1, 0, 1, 1, 1),
    "piece_queries": _pieces(_Features(1, 0, 1), 1, 1, 1, 2, 1),
    "piece_keys": _pieces(_Features(0, 1, 1), 2, 0, 1, 2, 1),
    "causal_sums": _causal(_Features(0, 1), 1, 0, lambda rows, m, d: 2 * m * d, 1, is_reader=False),
    "causal_forward": _causal(
        _Features(1, 1), 2, 0, lambda rows, m, d: 4 * m * d + 2 * rows * (m + d), 2, is_reader=True
    ),
    "causal_queries": _causal(
        _Features(1, 1, 3), 3, 16, lambda rows, m, d: 4 * m * d + rows * (6 * m + 4 * d), 2, is_reader=True
    ),
    "causal_later": _causal(_Features(1, 0), 1, 16, lambda rows, m, d: 2 * m * d, 1, is_reader=False),
    "causal_keys": _causal(_Features(1, 1, 3), 4, 16, lambda rows, m, d: 6 * m * d, 2, is_reader=True),
    "mix_near": _near(2, 3, 1, 2),
    "unmix_near_queries": _near(3, 4, 2, 5),
    "unmix_near_keys": _near(3, 3, 2, 4),
    "add_parts": _add_parts,
    "make_features": _make_features,
    "unmake_features": _unmake_features,
}
