"""What the Triton programs of the linear attentions are made of: states, and what pieces of rows hand to each other."""

import triton
import triton.language as tl

from .features_gpu import NOTHING, features_of_keys, load_features, logarithmic
from .rows_gpu import load_rows, product

LIMIT = tl.constexpr(40.0)

# The state: sums over keys with their values (M, D), sums over keys (M) and the keys' peaks (M).


@triton.jit
def no_keys(like, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr):
    if KIND == "made":
        dtype: tl.constexpr = like.projection.dtype.element_ty
    elif KIND == "mapped":
        dtype: tl.constexpr = tl.float64 if like.rows.dtype.element_ty == tl.float64 else tl.float32
    else:
        dtype: tl.constexpr = like.dtype.element_ty
    state = tl.zeros((FEATURES, CHANNELS), dtype)
    total = tl.zeros((FEATURES,), dtype)
    return state, total, tl.full((FEATURES,), NOTHING if logarithmic(KIND) else 0.0, dtype)


@triton.jit
def forget(state, total, peak, fresh, KIND: tl.constexpr):
    state = tl.where(fresh, 0.0, state)
    total = tl.where(fresh, 0.0, total)
    if logarithmic(KIND):
        peak = tl.where(fresh, NOTHING, peak)
    return state, total, peak


@triton.jit
def rescale(state, total, before, peak, KIND: tl.constexpr):
    if logarithmic(KIND):
        factor = tl.exp(before - peak)
        state *= factor[:, None]
        total *= factor
    return state, total


@triton.jit
def next_step(keys, peak, ids, row, end, index, KIND: tl.constexpr):
    """(rows of the step that begins at `row`, peaks before it, peaks after it)."""
    rows = row + index
    beyond = rows >= end
    if ids is not None:
        beyond |= tl.load(ids + rows, mask=rows < end, other=0) != tl.load(ids + row)
    before = peak
    if logarithmic(KIND):
        first = tl.maximum(peak, tl.max(tl.where((index == 0)[None, :], keys, float("-inf")), 1))
        beyond |= tl.max(keys - first[:, None], 0) > LIMIT
    count = tl.min(tl.where(beyond, index, index.shape[0]), 0)
    if logarithmic(KIND):
        peak = tl.maximum(first, tl.max(tl.where((index < count)[None, :], keys, float("-inf")), 1))
    return count, before, peak


@triton.jit
def sum_of_keys(
    key, value, begin, end, index, feature, features, channel, width, value_row, KIND: tl.constexpr, RULE: tl.constexpr,
    heads=None, positions=None,
):  # fmt: skip
    """The state after the rows of a whole document."""
    state, total, peak = no_keys(key, feature.shape[0], channel.shape[0], KIND)
    for row in range(begin, end, index.shape[0]):
        inside = index < end - row
        keys = load_features(key, row, inside, feature, features, KIND, heads, positions)
        before = peak
        if logarithmic(KIND):
            peak = tl.maximum(peak, tl.max(keys, 1))
        state, total = rescale(state, total, before, peak, KIND)
        keys = features_of_keys(keys, peak, inside, KIND, RULE)
        values = load_rows(value, row, inside, channel, width, value_row)
        state += product(keys, values.to(state.dtype), RULE)
        total += tl.sum(keys, 1)
    return state, total, peak


# Where heads alone keep no card busy, each is cut into pieces of rows, axis 2 of the grid. What a piece sums up goes
# through memory: states (pieces, heads, blocks of channels, M, D), totals and peaks (.., M).


@triton.jit
def piece_bounds(length, rows):
    """First row of a program's piece, and the one behind its last."""
    begin = tl.program_id(2) * rows
    return begin, tl.minimum(begin + rows, length)


@triton.jit
def place_of_piece(piece):
    """A piece of this program's head and block of channels among those of all."""
    return (piece * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def total_of_piece(totals, piece, FEATURES: tl.constexpr):
    """Pointers (M) to a piece's total, or its peaks."""
    return totals + place_of_piece(piece) * FEATURES + tl.arange(0, FEATURES)


@triton.jit
def state_of_piece(states, piece, FEATURES: tl.constexpr, CHANNELS: tl.constexpr):
    """Pointers (M, D) to a piece's state."""
    row = place_of_piece(piece) * FEATURES + tl.arange(0, FEATURES)
    return states + row[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]


@triton.jit
def store_piece(state, total, peak, states, totals, peaks, piece, KIND: tl.constexpr):
    """Write what a piece sums up to."""
    tl.store(state_of_piece(states, piece, state.shape[0], state.shape[1]), state)
    tl.store(total_of_piece(totals, piece, state.shape[0]), total)
    if logarithmic(KIND):
        tl.store(total_of_piece(peaks, piece, state.shape[0]), peak)


@triton.jit
def add_piece(state, total, peak, states, totals, peaks, piece, KIND: tl.constexpr):
    """The state with what the keys of another piece sum up to."""
    own = tl.load(state_of_piece(states, piece, state.shape[0], state.shape[1]))
    own_total = tl.load(total_of_piece(totals, piece, state.shape[0]))
    before, own_peak = peak, peak
    if logarithmic(KIND):
        own_peak = tl.load(total_of_piece(peaks, piece, state.shape[0]))
        peak = tl.maximum(peak, own_peak)
    state, total = rescale(state, total, before, peak, KIND)
    own, own_total = rescale(own, own_total, own_peak, peak, KIND)
    return state + own, total + own_total, peak
