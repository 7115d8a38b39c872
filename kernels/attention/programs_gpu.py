"""Triton kernels of the linear attentions; gpu_kernels.py says how they walk, and launches them.

A program's head is axis 0 of the grid, its block of channels axis 1; without causality axis 2 is a piece of the rows,
and a program has the documents that begin in it. Blocks hold ROWS rows (C in shapes), all FEATURES
(M) and some CHANNELS (D). Rows of padding are neither read nor written. `LOGS`: features are given as logarithms;
`RULE`: how matrices are multiplied, see parts_gpu.py.
"""

import triton
import triton.language as tl

from .parts_gpu import (
    NOTHING,
    absent,
    begins_document,
    document_end,
    features_of_keys,
    features_of_queries,
    forget,
    inverse_of,
    length_of,
    load_features,
    load_rows,
    lower_triangle,
    next_piece,
    no_keys,
    notes_of,
    over_features,
    own_documents,
    product,
    rescale,
    rounded,
    rows_of_head,
    scale_of_queries,
    store_features,
    store_rows,
    sum_of_keys,
    to_features,
    to_logarithms,
    weights_of_queries,
    where_head_begins,
)

# Forward: the causal pass takes a row's own piece pair by pair and all earlier ones from the state; without causality a
# document's keys are summed first and its queries read the sum.


@triton.jit
def causal_forward(
    query, key, value, lengths, ids, result, heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
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
    state, total, peak = no_keys(query, FEATURES, CHANNELS, LOGS)
    row = length * 0
    while row < length:
        keys = load_features(key, row, index < length - row, feature, features, absent(LOGS))
        fresh = begins_document(ids, row)
        state, total, peak = forget(state, total, peak, fresh, LOGS)
        count, before, peak = next_piece(keys, peak, ids, row, length, index, LOGS)
        inside = index < count
        keys = features_of_keys(keys, peak, inside, LOGS, RULE)
        queries = load_features(query, row, inside, feature, features, absent(LOGS))
        scale = scale_of_queries(queries, peak, LOGS)
        queries = features_of_queries(queries, peak, scale, LOGS, RULE)
        values = load_rows(value, row, inside, channel, width)
        state, total = rescale(state, total, before, peak, LOGS)
        scores = lower_triangle(over_features(queries, keys, RULE), index)
        inverse = inverse_of(weights_of_queries(queries, total) + tl.sum(scores, 1))
        sums = over_features(queries, state, RULE) + product(scores, values, RULE)
        store_rows(result, sums * inverse[:, None], row, inside, channel, width)
        state += product(keys, values, RULE)
        total += tl.sum(keys, 1)
        row += count


@triton.jit
def whole_forward(
    query, key, value, lengths, ids, result, heads, positions, features, width, rows_of_piece, value_sample, value_head,
    value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The result where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    query, key = query + head * positions * features, key + head * positions * features
    value = where_head_begins(value, heads, value_sample, value_head)
    result = where_head_begins(result, heads, mixed_sample, mixed_head)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = own_documents(ids, length, rows_of_piece, index, ROWS)
    while begin < behind:
        end = document_end(ids, begin, length, index, ROWS)
        state, total, peak = sum_of_keys(
            key, value, begin, end, index, feature, features, channel, width, value_row, LOGS, RULE
        )
        row = begin
        while row < end:
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, absent(LOGS))
            queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, LOGS), LOGS, RULE)
            inverse = inverse_of(weights_of_queries(queries, total))
            store_rows(
                result, over_features(queries, state, RULE) * inverse[:, None], row, inside, channel, width, mixed_row
            )
            row += ROWS
        begin = end


# Backward: with G the gradient of the result, o the result and n the sum of a row's weights, the weight of query i and
# key j has the gradient (G_i . v_j - G_i . o_i) / n_i; `gradients` holds G / n, `offset` holds G . o / n. Both products
# are sums over channels, and all that follows is linear in them: each block of channels writes its own share of the
# gradients of queries and keys, (blocks, heads, rows, M), which the launcher adds up.


@triton.jit
def whole_backward(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, heads, positions, features, width,
    rows_of_piece, value_sample, value_head, value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The gradients where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key = query + first * features, key + first * features
    value = where_head_begins(value, heads, value_sample, value_head)
    gradient = where_head_begins(gradient, heads, mixed_sample, mixed_head)
    of_value = where_head_begins(of_value, heads, mixed_sample, mixed_head)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key = of_query + share * features, of_key + share * features
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin, behind = own_documents(ids, length, rows_of_piece, index, ROWS)
    while begin < behind:
        end = document_end(ids, begin, length, index, ROWS)
        state, total, peak = sum_of_keys(
            key, value, begin, end, index, feature, features, channel, width, value_row, LOGS, RULE
        )
        later, later_total, _ = no_keys(query, FEATURES, CHANNELS, LOGS)
        row = begin
        while row < end:
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, absent(LOGS))
            queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, LOGS), LOGS, RULE)
            inverse = inverse_of(weights_of_queries(queries, total))
            gradients = load_rows(gradient, row, inside, channel, width, mixed_row).to(later.dtype)
            gradients = rounded(gradients * inverse[:, None], RULE)
            mixed = to_features(gradients, state, RULE)
            later += product(queries, gradients, RULE)
            offset = tl.sum(queries * mixed, 0) * inverse
            later_total -= tl.sum(queries * offset[None, :], 1)
            mixed -= offset[None, :] * total[:, None]
            store_features(of_query, to_logarithms(mixed, queries, LOGS), row, inside, feature, features)
            row += ROWS
        row = begin
        while row < end:
            inside = index < end - row
            keys = load_features(key, row, inside, feature, features, absent(LOGS))
            keys = features_of_keys(keys, peak, inside, LOGS, RULE)
            store_rows(of_value, over_features(keys, later, RULE), row, inside, channel, width, mixed_row)
            values = load_rows(value, row, inside, channel, width, value_row).to(later.dtype)
            mixed = to_features(values, later, RULE) + later_total[:, None]
            store_features(of_key, to_logarithms(mixed, keys, LOGS), row, inside, feature, features)
            row += ROWS
        begin = end


@triton.jit
def causal_queries(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, inverses, offsets, scales, sizes, peaks,
    heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, what keys and values get from queries of their own piece, and notes for `causal_keys`."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = rows_of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key, of_value = of_query + share * features, of_key + share * features, of_value + first * width
    inverses, offsets, scales, sizes, peaks = notes_of(inverses, offsets, scales, sizes, peaks, share, features)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = no_keys(query, FEATURES, CHANNELS, LOGS)
    row = length * 0
    while row < length:
        keys = load_features(key, row, index < length - row, feature, features, absent(LOGS))
        fresh = begins_document(ids, row)
        state, total, peak = forget(state, total, peak, fresh, LOGS)
        count, before, peak = next_piece(keys, peak, ids, row, length, index, LOGS)
        inside = index < count
        rows = row + index
        keys = features_of_keys(keys, peak, inside, LOGS, RULE)
        queries = load_features(query, row, inside, feature, features, absent(LOGS))
        scale = scale_of_queries(queries, peak, LOGS)
        queries = features_of_queries(queries, peak, scale, LOGS, RULE)
        values = load_rows(value, row, inside, channel, width)
        state, total = rescale(state, total, before, peak, LOGS)
        scores = lower_triangle(over_features(queries, keys, RULE), index)
        inverse = inverse_of(weights_of_queries(queries, total) + tl.sum(scores, 1))
        gradients = load_rows(gradient, row, inside, channel, width) * inverse[:, None]
        mixed = to_features(gradients, state, RULE)
        of_scores = lower_triangle(product(gradients, tl.trans(values), RULE), index)
        offset = (tl.sum(queries * mixed, 0) + tl.sum(scores * of_scores, 1)) * inverse
        of_scores = lower_triangle(of_scores - offset[:, None], index)
        mixed += tl.trans(product(of_scores, tl.trans(keys), RULE)) - offset[None, :] * total[:, None]
        store_features(of_query, to_logarithms(mixed, queries, LOGS), row, inside, feature, features)
        mixed = tl.trans(product(tl.trans(of_scores), tl.trans(queries), RULE))
        store_features(of_key, to_logarithms(mixed, keys, LOGS), row, inside, feature, features)
        store_rows(of_value, product(tl.trans(scores), gradients, RULE), row, inside, channel, width)
        state += product(keys, values, RULE)
        total += tl.sum(keys, 1)
        tl.store(inverses + rows, inverse, mask=inside)
        tl.store(offsets + rows, offset, mask=inside)
        tl.store(sizes + row + count - 1, count.to(tl.int32))
        tl.store(scales + rows, scale, mask=inside)
        if LOGS:
            tl.store(peaks + row * features + feature, peak, mask=feature < features)
        row += count


@triton.jit
def causal_keys(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, inverses, offsets, scales, sizes, peaks,
    heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Adds what keys and values get from queries of later pieces, walking backward."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = rows_of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key, of_value = of_query + share * features, of_key + share * features, of_value + first * width
    inverses, offsets, scales, sizes, peaks = notes_of(inverses, offsets, scales, sizes, peaks, share, features)
    length = length_of(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    later, later_total, above = no_keys(query, FEATURES, CHANNELS, LOGS)
    end = length
    while end > 0:
        count = tl.load(sizes + end - 1)
        row = end - count
        rows = row + index
        inside = index < count
        peak = above
        if LOGS:
            peak = tl.load(peaks + row * features + feature, mask=feature < features, other=NOTHING)
            # Going back, peaks fall, and so does what later queries weigh.
            later, later_total = rescale(later, later_total, tl.minimum(peak, above), above, LOGS)
        fresh = (end < length) & begins_document(ids, tl.minimum(end, length - 1))
        later, later_total, above = forget(later, later_total, above, fresh, LOGS)
        keys = load_features(key, row, inside, feature, features, absent(LOGS))
        keys = features_of_keys(keys, peak, inside, LOGS, RULE)
        values = load_rows(value, row, inside, channel, width)
        mixed = to_features(values, later, RULE) + later_total[:, None]
        mixed = to_logarithms(mixed, keys, LOGS) + load_features(of_key, row, inside, feature, features, 0.0)
        store_features(of_key, mixed, row, inside, feature, features)
        sums = over_features(keys, later, RULE) + load_rows(of_value, row, inside, channel, width)
        store_rows(of_value, sums, row, inside, channel, width)
        queries = load_features(query, row, inside, feature, features, absent(LOGS))
        scale = tl.load(scales + rows, mask=inside, other=0.0)
        queries = features_of_queries(queries, peak, scale, LOGS, RULE)
        inverse = tl.load(inverses + rows, mask=inside, other=0.0)
        offset = tl.load(offsets + rows, mask=inside, other=0.0)
        gradients = load_rows(gradient, row, inside, channel, width) * inverse[:, None]
        later += product(queries, gradients, RULE)
        later_total -= tl.sum(queries * offset[None, :], 1)
        above = peak
        end = row
