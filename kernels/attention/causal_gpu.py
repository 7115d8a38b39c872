"""Triton programs of the causal linear attentions; gpu_kernels.py says how they walk, and launches them.

The grid and the blocks are those of programs_gpu.py, but a program has the rows of its piece, whichever documents they
are of. What keys before the piece sum up to, and in the backward pass queries behind it, is found first, by programs
that have a piece each; where a head is one piece, nothing is: `states` is None then.
"""

import triton
import triton.language as tl

from ..common.products_gpu import rounded
from .features_gpu import (
    NOTHING,
    features_of_keys,
    features_of_queries,
    inverse_of,
    load_features,
    logarithmic,
    lower_triangle,
    scale_of_queries,
    store_features,
    to_logarithms,
    weights_of_queries,
)
from .rows_gpu import (
    begins_document,
    continues_document,
    document_end,
    length_of,
    load_rows,
    notes_of,
    over_features,
    product,
    rows_of_head,
    store_rows,
    to_features,
    where_head_begins,
)
from .states_gpu import (
    add_piece,
    forget,
    next_step,
    no_keys,
    piece_bounds,
    place_of_piece,
    rescale,
    state_of_piece,
    store_piece,
    sum_of_keys,
    total_of_piece,
)

# Forward: a row's own step is taken pair by pair and all earlier ones from the state.


@triton.jit
def causal_sums(
    key, value, lengths, ids, states, totals, own_peaks, joined, heads, positions, features, width, rows_of_piece,
    value_sample, value_head, value_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The state after each piece by the rows of its last document, and whether that came from the piece before."""
    head = tl.program_id(0).to(tl.int64)
    key += head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    index = tl.arange(0, ROWS)
    begin, end = piece_bounds(length_of(lengths, head // heads, positions), rows_of_piece)
    if ids is not None:
        ids += (head // heads) * positions
        first, behind = begin, document_end(ids, begin, end, index, ROWS)
        while behind < end:
            begin = behind
            behind = document_end(ids, begin, end, index, ROWS)
        tl.store(
            joined + place_of_piece(tl.program_id(2)), ((begin == first) & continues_document(ids, first)).to(tl.int32)
        )
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = sum_of_keys(
        key, value, begin, end, index, feature, features, channel, width, value_row, KIND, RULE
    )
    store_piece(state, total, peak, states, totals, own_peaks, tl.program_id(2), KIND)


@triton.jit
def _sums_before(
    like, row, end, ids, states, totals, own_peaks, joined, FEATURES: tl.constexpr, CHANNELS: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """The state before a program's first row, which pieces before it have found."""
    state, total, peak = no_keys(like, FEATURES, CHANNELS, KIND)
    if states is not None:
        piece = tl.program_id(2)
        going = (piece > 0) & (row < end)
        if going:
            going = continues_document(ids, row)
        while going:
            piece -= 1
            state, total, peak = add_piece(state, total, peak, states, totals, own_peaks, piece, KIND)
            going = piece > 0
            if joined is not None:
                going &= tl.load(joined + place_of_piece(piece)) != 0
    return state, total, peak


@triton.jit
def _next(
    state, total, peak, query, key, value, ids, row, end, index, feature, features, channel, width,
    KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The step that begins at a row: the state before it on the scale of its peaks, its number of rows, keys, queries
    and their scale, values, scores of pairs, and the inverse of what each query weighs.
    """
    keys = load_features(key, row, index < end - row, feature, features, KIND)
    fresh = begins_document(ids, row)
    state, total, peak = forget(state, total, peak, fresh, KIND)
    count, before, peak = next_step(keys, peak, ids, row, end, index, KIND)
    inside = index < count
    keys = features_of_keys(keys, peak, inside, KIND, RULE)
    queries = load_features(query, row, inside, feature, features, KIND)
    scale = scale_of_queries(queries, peak, KIND)
    queries = features_of_queries(queries, peak, scale, KIND, RULE)
    values = load_rows(value, row, inside, channel, width).to(state.dtype)
    state, total = rescale(state, total, before, peak, KIND)
    scores = rounded(lower_triangle(over_features(queries, keys, RULE), index), RULE)
    inverse = inverse_of(weights_of_queries(queries, total) + tl.sum(scores, 1))
    return state, total, peak, count, keys, queries, scale, values, scores, inverse


@triton.jit
def causal_forward(
    query, key, value, lengths, ids, states, totals, own_peaks, joined, result, heads, positions, features, width,
    rows_of_piece,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The result where a row sees itself and what stands before it."""
    head = tl.program_id(0).to(tl.int64)
    query, key, value, result = rows_of_head(query, key, value, result, head * positions, features, width)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row, end = piece_bounds(length, rows_of_piece)
    state, total, peak = _sums_before(query, row, end, ids, states, totals, own_peaks, joined, FEATURES, CHANNELS, KIND)
    while row < end:
        state, total, peak, count, keys, queries, _, values, scores, inverse = _next(
            state, total, peak, query, key, value, ids, row, end, index, feature, features, channel, width, KIND, RULE
        )
        inside = index < count
        sums = over_features(queries, state, RULE) + product(scores, values, RULE)
        store_rows(result, sums * inverse[:, None], row, inside, channel, width)
        state += product(keys, values, RULE)
        total += tl.sum(keys, 1)
        row += count


# Backward: what programs_gpu.py says of gradients and offsets. Queries weigh by the peaks that they saw, which fall on
# the way back.


@triton.jit
def _at_row(peaks, row, feature, features):
    return peaks + row.to(tl.int64) * features + feature


@triton.jit
def causal_queries(
    gradient, query, key, value, lengths, ids, states, totals, own_peaks, joined, of_query, of_key, own_of_value,
    inverses, offsets, scales, sizes, peaks, heads, positions, features, width, rows_of_piece,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, what keys and values get from queries of their own step, and notes of the steps."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = rows_of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key = of_query + share * features, of_key + share * features
    own_of_value += first * width
    inverses, offsets, scales, sizes, peaks = notes_of(inverses, offsets, scales, sizes, peaks, share, features)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row, end = piece_bounds(length, rows_of_piece)
    state, total, peak = _sums_before(query, row, end, ids, states, totals, own_peaks, joined, FEATURES, CHANNELS, KIND)
    while row < end:
        state, total, peak, count, keys, queries, scale, values, scores, inverse = _next(
            state, total, peak, query, key, value, ids, row, end, index, feature, features, channel, width, KIND, RULE
        )
        inside = index < count
        rows = row + index
        gradients = load_rows(gradient, row, inside, channel, width).to(state.dtype)
        gradients = rounded(gradients * inverse[:, None], RULE)
        of_scores = lower_triangle(product(gradients, tl.trans(values), RULE), index)
        mixed = to_features(gradients, state, RULE)
        offset = (tl.sum(queries * mixed, 0) + tl.sum(scores * of_scores, 1)) * inverse
        tl.store(inverses + rows, inverse, mask=inside)
        tl.store(offsets + rows, offset, mask=inside)
        tl.store(sizes + row + count - 1, count.to(tl.int32))
        tl.store(scales + rows, scale, mask=inside)
        if logarithmic(KIND):
            tl.store(_at_row(peaks, row, feature, features), peak, mask=feature < features)
        store_rows(own_of_value, product(tl.trans(scores), gradients, RULE), row, inside, channel, width)
        mixed -= offset[None, :] * total[:, None]
        of_scores = rounded(lower_triangle(of_scores - offset[:, None], index), RULE)
        mixed += tl.trans(product(of_scores, tl.trans(keys), RULE))
        store_features(of_query, to_logarithms(mixed, queries, KIND), row, inside, feature, features)
        mixed = tl.trans(product(tl.trans(of_scores), tl.trans(queries), RULE))
        store_features(of_key, to_logarithms(mixed, keys, KIND), row, inside, feature, features)
        state += product(keys, values, RULE)
        total += tl.sum(keys, 1)
        row += count


@triton.jit
def _step_before(
    end, later, later_total, above, sizes, peaks, index, feature, features, KIND: tl.constexpr
):  # fmt: skip
    """The step that ends before a row, its peaks, and on their scale what queries behind it sum up to."""
    count = tl.load(sizes + end - 1)
    row = end - count
    peak = above
    if logarithmic(KIND):
        peak = tl.load(_at_row(peaks, row, feature, features), mask=feature < features, other=NOTHING)
        later, later_total = rescale(later, later_total, tl.minimum(peak, above), above, KIND)
    return row, index < count, peak, later, later_total, above


@triton.jit
def _add_queries(
    later, later_total, gradient, query, inverses, offsets, scales, row, inside, peak, feature, features, channel,
    width, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """What queries sum up to, with those of one more step."""
    rows = row + tl.arange(0, inside.shape[0])
    queries = load_features(query, row, inside, feature, features, KIND)
    scale = tl.load(scales + rows, mask=inside, other=0.0)
    queries = features_of_queries(queries, peak, scale, KIND, RULE)
    inverse = tl.load(inverses + rows, mask=inside, other=0.0)
    offset = tl.load(offsets + rows, mask=inside, other=0.0)
    gradients = load_rows(gradient, row, inside, channel, width).to(later.dtype)
    gradients = rounded(gradients * inverse[:, None], RULE)
    later += product(queries, gradients, RULE)
    later_total -= tl.sum(queries * offset[None, :], 1)
    return later, later_total


@triton.jit
def causal_later(
    gradient, query, lengths, ids, inverses, offsets, scales, sizes, peaks, later_states, later_totals, passing, heads,
    positions, features, width, rows_of_piece,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """What queries of each piece's first document sum up to on the scale of its first step's peaks, and whether the
    document goes on in the next piece.
    """
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, gradient = query + first * features, gradient + first * width
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    inverses, offsets, scales, sizes, peaks = notes_of(inverses, offsets, scales, sizes, peaks, share, features)
    length = length_of(lengths, head // heads, positions)
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, end = piece_bounds(length, rows_of_piece)
    if ids is not None:
        ids += (head // heads) * positions
        behind, end = end, document_end(ids, begin, end, index, ROWS)
        goes_on = (end == behind) & (end < length)
        if goes_on:
            goes_on = continues_document(ids, end)
        tl.store(passing + place_of_piece(tl.program_id(2)), goes_on.to(tl.int32))
    later, later_total, above = no_keys(query, FEATURES, CHANNELS, KIND)
    while end > begin:
        row, inside, peak, later, later_total, above = _step_before(
            end, later, later_total, above, sizes, peaks, index, feature, features, KIND
        )
        later, later_total = _add_queries(
            later, later_total, gradient, query, inverses, offsets, scales, row, inside, peak, feature, features,
            channel, width, KIND, RULE,
        )  # fmt: skip
        above = peak
        end = row
    store_piece(later, later_total, later_total, later_states, later_totals, later_totals, tl.program_id(2), "given")


@triton.jit
def _sums_behind(
    like, end, length, ids, peaks, later_states, later_totals, passing, feature, features, rows,
    CHANNELS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """What queries behind a program's last row sum up to, and the peaks of the first of them: pieces have found it."""
    FEATURES: tl.constexpr = feature.shape[0]
    later, later_total, above = no_keys(like, FEATURES, CHANNELS, KIND)
    if later_states is not None:
        piece = tl.program_id(2) + 1
        going = (end < length) & (piece < tl.num_programs(2))
        if going:
            going = continues_document(ids, end)
        if logarithmic(KIND):
            above = tl.load(_at_row(peaks, end, feature, features), mask=going & (feature < features), other=NOTHING)
        while going:
            own_above = above
            if logarithmic(KIND):
                own_above = tl.load(
                    _at_row(peaks, piece * rows, feature, features), mask=feature < features, other=NOTHING
                )
            own, own_total = rescale(
                tl.load(state_of_piece(later_states, piece, FEATURES, CHANNELS)),
                tl.load(total_of_piece(later_totals, piece, FEATURES)), above, own_above, KIND,
            )  # fmt: skip
            later += own
            later_total += own_total
            going = (piece + 1) * rows < length
            if passing is not None:
                going &= tl.load(passing + place_of_piece(piece)) != 0
            piece += 1
    return later, later_total, above


@triton.jit
def causal_keys(
    gradient, query, key, value, lengths, ids, of_key, own_of_value, of_value, inverses, offsets, scales, sizes, peaks,
    later_states, later_totals, passing, heads, positions, features, width, rows_of_piece,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, KIND: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Adds what keys and values get from queries of later steps, walking backward."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = rows_of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_key, own_of_value, of_value = of_key + share * features, own_of_value + first * width, of_value + first * width
    inverses, offsets, scales, sizes, peaks = notes_of(inverses, offsets, scales, sizes, peaks, share, features)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, end = piece_bounds(length, rows_of_piece)
    later, later_total, above = _sums_behind(
        query,
        end,
        length,
        ids,
        peaks,
        later_states,
        later_totals,
        passing,
        feature,
        features,
        rows_of_piece,
        CHANNELS,
        KIND,
    )
    while end > begin:
        row, inside, peak, later, later_total, above = _step_before(
            end, later, later_total, above, sizes, peaks, index, feature, features, KIND
        )
        fresh = (end < length) & begins_document(ids, tl.minimum(end, length - 1))
        later, later_total, above = forget(later, later_total, above, fresh, KIND)
        keys = load_features(key, row, inside, feature, features, KIND)
        keys = features_of_keys(keys, peak, inside, KIND, RULE)
        values = load_rows(value, row, inside, channel, width).to(later.dtype)
        mixed = to_features(values, later, RULE) + later_total[:, None]
        mixed = to_logarithms(mixed, keys, KIND) + load_features(of_key, row, inside, feature, features, "given")
        store_features(of_key, mixed, row, inside, feature, features)
        sums = over_features(keys, later, RULE) + load_rows(own_of_value, row, inside, channel, width)
        store_rows(of_value, sums, row, inside, channel, width)
        later, later_total = _add_queries(
            later, later_total, gradient, query, inverses, offsets, scales, row, inside, peak, feature, features,
            channel, width, KIND, RULE,
        )  # fmt: skip
        above = peak
        end = row
