"""Triton programs of the linear attention without causality and documents, whose heads are cut into pieces of rows.

There are few heads where samples are long: a program for each piece (axis 2 of the grid) keeps a card busy. The rest is
as in programs_gpu.py.
"""

import triton
import triton.language as tl

from ..common.products_gpu import rounded
from .features_gpu import (
    features_of_keys,
    features_of_queries,
    in_memory,
    inverse_of,
    load_features,
    logarithmic,
    scale_of_queries,
    store_gradients,
    weights_of_queries,
)
from .rows_gpu import length_of, load_rows, over_features, product, store_rows, to_features, where_head_begins
from .states_gpu import add_piece, no_keys, piece_bounds, state_of_piece, store_piece, sum_of_keys, total_of_piece


@triton.jit
def _state_of_all(states, totals, peaks, like, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr):
    """The state after all pieces."""
    state, total, peak = no_keys(like, FEATURES, CHANNELS, KIND)
    for piece in range(tl.num_programs(2)):
        state, total, peak = add_piece(state, total, peak, states, totals, peaks, piece, KIND)
    return state, total, peak


@triton.jit
def piece_sums(
    key, value, lengths, states, totals, peaks, heads, positions, features, width, rows, value_sample, value_head,
    value_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The state after the rows of each piece alone."""
    head = tl.program_id(0).to(tl.int64)
    if in_memory(KIND):
        key += head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    begin, end = piece_bounds(length_of(lengths, head // heads, positions), rows)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = sum_of_keys(
        key, value, begin, end, tl.arange(0, ROWS), feature, features, channel, width, value_row, KIND, RULE,
        heads, positions,
    )  # fmt: skip
    store_piece(state, total, peak, states, totals, peaks, tl.program_id(2), KIND)


@triton.jit
def piece_forward(
    query, lengths, states, totals, peaks, result, heads, positions, features, width, rows, mixed_sample, mixed_head,
    mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The result of each piece's rows."""
    head = tl.program_id(0).to(tl.int64)
    if in_memory(KIND):
        query += head * positions * features
    result = where_head_begins(result, heads, mixed_sample, mixed_head)
    begin, end = piece_bounds(length_of(lengths, head // heads, positions), rows)
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = _state_of_all(states, totals, peaks, query, FEATURES, CHANNELS, KIND)
    for row in range(begin, end, ROWS):
        inside = index < end - row
        queries = load_features(query, row, inside, feature, features, KIND, heads, positions)
        queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, KIND), KIND, RULE)
        inverse = inverse_of(weights_of_queries(queries, total))
        store_rows(
            result, over_features(queries, state, RULE) * inverse[:, None], row, inside, channel, width, mixed_row
        )


@triton.jit
def piece_queries(
    gradient, query, lengths, states, totals, peaks, of_query, later_states, later_totals, heads, positions, features,
    width, rows, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, and of the state by the queries of each piece."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    if in_memory(KIND):
        query += head * positions * features
    gradient = where_head_begins(gradient, heads, mixed_sample, mixed_head)
    if KIND != "mapped":
        of_query += (first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions) * features
    begin, end = piece_bounds(length_of(lengths, head // heads, positions), rows)
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = _state_of_all(states, totals, peaks, query, FEATURES, CHANNELS, KIND)
    later, later_total, _ = no_keys(query, FEATURES, CHANNELS, KIND)
    for row in range(begin, end, ROWS):
        inside = index < end - row
        queries = load_features(query, row, inside, feature, features, KIND, heads, positions)
        queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, KIND), KIND, RULE)
        inverse = inverse_of(weights_of_queries(queries, total))
        gradients = load_rows(gradient, row, inside, channel, width, mixed_row).to(later.dtype)
        gradients = rounded(gradients * inverse[:, None], RULE)
        mixed = to_features(gradients, state, RULE)
        offset = tl.sum(queries * mixed, 0) * inverse
        mixed -= offset[None, :] * total[:, None]
        store_gradients(of_query, mixed, queries, query, row, inside, feature, features, heads, KIND)
        later += product(queries, gradients, RULE)
        later_total -= tl.sum(queries * offset[None, :], 1)
    store_piece(later, later_total, later_total, later_states, later_totals, later_totals, tl.program_id(2), "given")


@triton.jit
def piece_keys(
    key, value, lengths, peaks, of_key, of_value, later_states, later_totals, heads, positions, features, width, rows,
    value_sample, value_head, value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    if in_memory(KIND):
        key += head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    of_value = where_head_begins(of_value, heads, mixed_sample, mixed_head)
    if KIND != "mapped":
        of_key += (first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions) * features
    begin, end = piece_bounds(length_of(lengths, head // heads, positions), rows)
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    later, later_total, peak = no_keys(key, FEATURES, CHANNELS, KIND)
    for piece in range(tl.num_programs(2)):
        later += tl.load(state_of_piece(later_states, piece, FEATURES, CHANNELS))
        later_total += tl.load(total_of_piece(later_totals, piece, FEATURES))
        if logarithmic(KIND):
            peak = tl.maximum(peak, tl.load(total_of_piece(peaks, piece, FEATURES)))
    for row in range(begin, end, ROWS):
        inside = index < end - row
        keys = load_features(key, row, inside, feature, features, KIND, heads, positions)
        keys = features_of_keys(keys, peak, inside, KIND, RULE)
        values = load_rows(value, row, inside, channel, width, value_row).to(later.dtype)
        mixed = to_features(values, later, RULE) + later_total[:, None]
        store_gradients(of_key, mixed, keys, key, row, inside, feature, features, heads, KIND)
        store_rows(of_value, over_features(keys, later, RULE), row, inside, channel, width, mixed_row)
