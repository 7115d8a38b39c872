"""Triton programs of the linear attentions without causality; gpu_kernels.py says how they walk, and launches them.

A program's head is axis 0 of the grid, its block of channels axis 1, axis 2 a piece of the rows: a program has the
documents that begin in it. Blocks hold ROWS rows (C in shapes), all FEATURES (M) and some CHANNELS (D). Rows of padding
are neither read nor written. `LOGS`: features are given as logarithms, or MADE of rows, see features_gpu.py; `RULE`:
how matrices are multiplied, see rows_gpu.py.
"""

import triton
import triton.language as tl

from .features_gpu import (
    MADE,
    features_of_keys,
    features_of_queries,
    inverse_of,
    load_features,
    scale_of_queries,
    store_features,
    to_logarithms,
    weights_of_queries,
)
from .rows_gpu import (
    document_end,
    length_of,
    load_rows,
    over_features,
    own_documents,
    product,
    rounded,
    store_rows,
    to_features,
    where_head_begins,
)
from .states_gpu import no_keys, sum_of_keys

# Forward: a document's keys are summed first, and its queries read the sum.


@triton.jit
def whole_forward(
    query, key, value, lengths, ids, result, heads, positions, features, width, rows_of_piece, value_sample, value_head,
    value_row, mixed_sample, mixed_head, mixed_row,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """The result where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    if LOGS != MADE:
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
            key, value, begin, end, index, feature, features, channel, width, value_row, LOGS, RULE, heads, positions
        )
        for row in range(begin, end, ROWS):
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, LOGS, heads, positions)
            queries = features_of_queries(queries, peak, scale_of_queries(queries, peak, LOGS), LOGS, RULE)
            inverse = inverse_of(weights_of_queries(queries, total))
            store_rows(
                result, over_features(queries, state, RULE) * inverse[:, None], row, inside, channel, width, mixed_row
            )
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
    if LOGS != MADE:
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
            key, value, begin, end, index, feature, features, channel, width, value_row, LOGS, RULE, heads, positions
        )
        later, later_total, _ = no_keys(query, FEATURES, CHANNELS, LOGS)
        for row in range(begin, end, ROWS):
            inside = index < end - row
            queries = load_features(query, row, inside, feature, features, LOGS, heads, positions)
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
        for row in range(begin, end, ROWS):
            inside = index < end - row
            keys = load_features(key, row, inside, feature, features, LOGS, heads, positions)
            keys = features_of_keys(keys, peak, inside, LOGS, RULE)
            store_rows(of_value, over_features(keys, later, RULE), row, inside, channel, width, mixed_row)
            values = load_rows(value, row, inside, channel, width, value_row).to(later.dtype)
            mixed = to_features(values, later, RULE) + later_total[:, None]
            store_features(of_key, to_logarithms(mixed, keys, LOGS), row, inside, feature, features)
        begin = end
