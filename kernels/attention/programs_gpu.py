"""Triton programs of the linear attentions without causality, of documents; gpu_kernels.py says how they walk, and
launches them.

A program's head is axis 0 of the grid, its block of channels axis 1, axis 2 a piece of the rows. Blocks hold ROWS rows
(C in shapes), all FEATURES (M) and some CHANNELS (D). Rows of padding are neither read nor written. `KIND`: what
features are made of, see features_gpu.py; `RULE`: how matrices are multiplied, see rows_gpu.py.

A document that lies in one piece is that program's alone. Of one that goes over several, another launch sums up each
piece's share; a piece has two places for such sums, for a document that began before it and for one that begins in it.
A sample of one document is such a document; without states, of a launch with one piece, there are none.
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
from .rows_gpu import (
    document_end,
    goes_on,
    length_of,
    load_rows,
    over_features,
    product,
    store_rows,
    to_features,
    where_head_begins,
)
from .states_gpu import (
    add_piece,
    no_keys,
    piece_bounds,
    place_of_piece,
    state_of_piece,
    store_piece,
    sum_of_keys,
    total_of_piece,
)


@triton.jit
def _place_of_sum(piece, began_before):
    """Which of all sums is a piece's share of a document that goes over several."""
    return 2 * piece + tl.where(began_before, 0, 1)


@triton.jit
def _pieces_of_document(ids, joined, begin, end, length, rows):
    """First and last piece of the document that a program's piece has these rows of."""
    first = tl.program_id(2)
    last = first
    if joined is not None:
        going = goes_on(ids, begin, length)
        while going:
            first -= 1
            going = tl.load(joined + place_of_piece(first)) != 0
        going = goes_on(ids, end, length)
        while going:
            last += 1
            going = (tl.load(joined + place_of_piece(last)) != 0) & goes_on(ids, (last + 1) * rows, length)
    return first, last


@triton.jit
def document_sums(
    key, value, lengths, ids, states, totals, peaks, joined, heads, positions, features, width, rows_of_piece,
    value_sample, value_head, value_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """A piece's share of documents that go over several, and whether the last of its documents began before it."""
    head = tl.program_id(0).to(tl.int64)
    if in_memory(KIND):
        key += head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    length = length_of(lengths, head // heads, positions)
    ids += (head // heads) * positions
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = piece_bounds(length, rows_of_piece)
    began_before = begin < 0
    while begin < behind:
        end = document_end(ids, begin, behind, index, ROWS)
        began_before = goes_on(ids, begin, length)
        if began_before | goes_on(ids, end, length):
            state, total, peak = sum_of_keys(
                key, value, begin, end, index, feature, features, channel, width, value_row, KIND, RULE,
                heads, positions,
            )  # fmt: skip
            place = _place_of_sum(tl.program_id(2), began_before)
            store_piece(state, total, peak, states, totals, peaks, place, KIND)
        begin = end
    tl.store(joined + place_of_piece(tl.program_id(2)), began_before.to(tl.int32))


@triton.jit
def _state_of_document(
    key, value, begin, end, states, totals, peaks, first_piece, last_piece, index, feature, features, channel, width,
    value_row, KIND: tl.constexpr, RULE: tl.constexpr, heads, positions,
):  # fmt: skip
    """The state after all rows of a document: those of its only piece, or what its pieces have summed up."""
    alone = first_piece == last_piece
    state, total, peak = sum_of_keys(
        key, value, begin, tl.where(alone, end, begin), index, feature, features, channel, width, value_row, KIND, RULE,
        heads, positions,
    )  # fmt: skip
    if states is not None:
        for piece in range(first_piece, tl.where(alone, first_piece, last_piece + 1)):
            place = _place_of_sum(piece, piece > first_piece)
            state, total, peak = add_piece(state, total, peak, states, totals, peaks, place, KIND)
    return state, total, peak


# Forward: a document's keys are summed first, and its queries read the sum.


@triton.jit
def whole_forward(
    query, key, value, lengths, ids, states, totals, peaks, joined, result, heads, positions, features, width,
    rows_of_piece, value_sample, value_head, value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The result where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    if in_memory(KIND):
        query, key = query + head * positions * features, key + head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    result = where_head_begins(result, heads, mixed_sample, mixed_head)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = piece_bounds(length, rows_of_piece)
    while begin < behind:
        end = document_end(ids, begin, behind, index, ROWS)
        first_piece, last_piece = _pieces_of_document(ids, joined, begin, end, length, rows_of_piece)
        state, total, peak = _state_of_document(
            key, value, begin, end, states, totals, peaks, first_piece, last_piece, index, feature, features, channel,
            width, value_row, KIND, RULE, heads, positions,
        )  # fmt: skip
        for row in range(begin, end, ROWS):
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, KIND, heads, positions)
            queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, KIND), KIND, RULE)
            inverse = inverse_of(weights_of_queries(queries, total))
            store_rows(
                result, over_features(queries, state, RULE) * inverse[:, None], row, inside, channel, width, mixed_row
            )
        begin = end


# Backward: with G the gradient of the result, o the result and n the sum of a row's weights, the weight of query i and
# key j has the gradient (G_i . v_j - G_i . o_i) / n_i; `gradients` holds G / n, `offset` holds G . o / n. Both products
# are sums over channels, and all that follows is linear in them: each block of channels writes its own share of the
# gradients of queries and keys, (blocks, heads, rows, M), which the launcher adds up. What the queries of a document do
# to its state is `later`; where it goes over several pieces, its keys get theirs in a launch of their own.


@triton.jit
def _store_gradients_of_keys(
    key, value, of_key, of_value, begin, end, peak, later, later_total, index, feature, features, channel, width,
    value_row, mixed_row, KIND: tl.constexpr, RULE: tl.constexpr, heads, positions,
):  # fmt: skip
    for row in range(begin, end, index.shape[0]):
        inside = index < end - row
        keys = load_features(key, row, inside, feature, features, KIND, heads, positions)
        keys = features_of_keys(keys, peak, inside, KIND, RULE)
        store_rows(of_value, over_features(keys, later, RULE), row, inside, channel, width, mixed_row)
        values = load_rows(value, row, inside, channel, width, value_row).to(later.dtype)
        mixed = to_features(values, later, RULE) + later_total[:, None]
        store_gradients(of_key, mixed, keys, key, row, inside, feature, features, heads, KIND)


@triton.jit
def _store_share(later, later_total, later_states, later_totals, first_piece, last_piece):
    """Of a document that goes over several pieces."""
    if first_piece < last_piece:
        place = _place_of_sum(tl.program_id(2), first_piece < tl.program_id(2))
        store_piece(later, later_total, later_total, later_states, later_totals, later_totals, place, "given")


@triton.jit
def whole_backward(
    gradient, query, key, value, lengths, ids, states, totals, peaks, joined, of_query, of_key, of_value, later_states,
    later_totals, heads, positions, features, width, rows_of_piece, value_sample, value_head, value_row, mixed_sample,
    mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The gradients where every row of a document sees all of them, but those of keys and values of documents that go
    over several pieces.
    """
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    if in_memory(KIND):
        query, key = query + first * features, key + first * features
    value = where_head_begins(value, heads, value_sample, value_head)
    gradient = where_head_begins(gradient, heads, mixed_sample, mixed_head)
    of_value = where_head_begins(of_value, heads, mixed_sample, mixed_head)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    if KIND != "mapped":
        of_query, of_key = of_query + share * features, of_key + share * features
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = piece_bounds(length, rows_of_piece)
    while begin < behind:
        end = document_end(ids, begin, behind, index, ROWS)
        first_piece, last_piece = _pieces_of_document(ids, joined, begin, end, length, rows_of_piece)
        state, total, peak = _state_of_document(
            key, value, begin, end, states, totals, peaks, first_piece, last_piece, index, feature, features, channel,
            width, value_row, KIND, RULE, heads, positions,
        )  # fmt: skip
        later, later_total, _ = no_keys(query, FEATURES, CHANNELS, KIND)
        for row in range(begin, end, ROWS):
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, KIND, heads, positions)
            queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, KIND), KIND, RULE)
            inverse = inverse_of(weights_of_queries(queries, total))
            gradients = load_rows(gradient, row, inside, channel, width, mixed_row).to(later.dtype)
            gradients = rounded(gradients * inverse[:, None], RULE)
            mixed = to_features(gradients, state, RULE)
            later += product(queries, gradients, RULE)
            offset = tl.sum(queries * mixed, 0) * inverse
            later_total -= tl.sum(queries * offset[None, :], 1)
            mixed -= offset[None, :] * total[:, None]
            store_gradients(of_query, mixed, queries, query, row, inside, feature, features, heads, KIND)
        alone = first_piece == last_piece
        _store_gradients_of_keys(
            key, value, of_key, of_value, begin, tl.where(alone, end, begin), peak, later, later_total, index, feature,
            features, channel, width, value_row, mixed_row, KIND, RULE, heads, positions,
        )  # fmt: skip
        if later_states is not None:
            _store_share(later, later_total, later_states, later_totals, first_piece, last_piece)
        begin = end


@triton.jit
def document_keys(
    key, value, lengths, ids, peaks, joined, of_key, of_value, later_states, later_totals, heads, positions, features,
    width, rows_of_piece, value_sample, value_head, value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values of documents that go over several pieces."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    if in_memory(KIND):
        key += first * features
    value = where_head_begins(value, heads, value_sample, value_head)
    of_value = where_head_begins(of_value, heads, mixed_sample, mixed_head)
    if KIND != "mapped":
        of_key += (first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions) * features
    length = length_of(lengths, head // heads, positions)
    ids += (head // heads) * positions
    index, feature = tl.arange(0, ROWS), tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = piece_bounds(length, rows_of_piece)
    while begin < behind:
        end = document_end(ids, begin, behind, index, ROWS)
        first_piece, last_piece = _pieces_of_document(ids, joined, begin, end, length, rows_of_piece)
        if first_piece < last_piece:
            later, later_total, peak = no_keys(key, FEATURES, CHANNELS, KIND)
            for piece in range(first_piece, last_piece + 1):
                place = _place_of_sum(piece, piece > first_piece)
                later += tl.load(state_of_piece(later_states, place, FEATURES, CHANNELS))
                later_total += tl.load(total_of_piece(later_totals, place, FEATURES))
                if logarithmic(KIND):
                    peak = tl.maximum(peak, tl.load(total_of_piece(peaks, place, FEATURES)))
            _store_gradients_of_keys(
                key, value, of_key, of_value, begin, end, peak, later, later_total, index, feature, features, channel,
                width, value_row, mixed_row, KIND, RULE, heads, positions,
            )  # fmt: skip
        begin = end
