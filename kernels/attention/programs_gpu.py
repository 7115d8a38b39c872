"""Triton kernels of the linear attentions; gpu_kernels.py says how they walk, and launches them.

A program's head is axis 0 of the grid, its block of channels axis 1. Blocks hold ROWS rows (C in shapes), all FEATURES
(M) and some CHANNELS (D). Rows of padding are neither read nor written. `LOGS`: features are given as logarithms.
"""

import triton
import triton.language as tl

LIMIT = tl.constexpr(40.0)
NOTHING = tl.constexpr(-1e30)  # the scale of no key at all; finite, so that differences of scales are never NaN

# Forward: the causal pass takes a row's own piece pair by pair and all earlier ones from the state; without causality a
# document's keys are summed first and its queries read the sum.


@triton.jit
def causal_forward(
    query, key, value, lengths, ids, result, heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """The result where a row sees itself and what stands before it."""
    head = tl.program_id(0).to(tl.int64)
    query, key, value, result = _of_head(query, key, value, result, head * positions, features, width)
    length = _length(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = _nothing(query, FEATURES, CHANNELS, LOGS)
    row = length * 0
    while row < length:
        keys = _load(key, row + index, row + index < length, feature, features, _absent(LOGS))
        fresh = _begins(ids, row)
        state, total, peak = _forget(state, total, peak, fresh, LOGS)
        count, before, peak = _piece(keys, peak, ids, row, length, index, LOGS)
        inside = index < count
        rows = row + index
        keys = _features_of_keys(keys, peak, inside, LOGS)
        queries = _load(query, rows, inside, feature, features, _absent(LOGS))
        scale = _scale_of_queries(queries, peak, LOGS)
        queries = _features_of_queries(queries, peak, scale, LOGS)
        values = _load(value, rows, inside, channel, width, 0.0)
        state, total = _rescale(state, total, before, peak, LOGS)
        scores = _triangle(_dot(queries, tl.trans(keys)), index)
        inverse = _inverse(tl.sum(queries * total[None, :], 1) + tl.sum(scores, 1))
        sums = _dot(queries, state) + _dot(scores, values)
        _store(result, sums * inverse[:, None], rows, inside, channel, width)
        state += _dot(tl.trans(keys), values)
        total += tl.sum(keys, 0)
        row += count


@triton.jit
def whole_forward(
    query, key, value, lengths, ids, result, heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """The result where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    query, key, value, result = _of_head(query, key, value, result, head * positions, features, width)
    length = _length(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin = length * 0
    while begin < length:
        end = _document_end(ids, begin, length, index, ROWS)
        state, total, peak = _sum_of_keys(key, value, begin, end, index, feature, features, channel, width, LOGS)
        row = begin
        while row < end:
            rows, inside = row + index, row + index < end
            queries = _load(query, rows, inside, feature, features, _absent(LOGS))
            queries = _features_of_queries(queries, peak, _scale_of_queries(queries, peak, LOGS), LOGS)
            inverse = _inverse(tl.sum(queries * total[None, :], 1))
            _store(result, _dot(queries, state) * inverse[:, None], rows, inside, channel, width)
            row += ROWS
        begin = end


# Backward: with G the gradient of the result, o the result and n the sum of a row's weights, the weight of query i and
# key j has the gradient (G_i . v_j - G_i . o_i) / n_i; `gradients` holds G / n, `offset` holds G . o / n. Both products
# are sums over channels, and all that follows is linear in them: each block of channels writes its own share of the
# gradients of queries and keys, (blocks, heads, rows, M), which the launcher adds up.


@triton.jit
def whole_backward(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """The gradients where every row of a document sees all of them."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = _of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key, of_value = of_query + share * features, of_key + share * features, of_value + first * width
    length = _length(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    begin = length * 0
    while begin < length:
        end = _document_end(ids, begin, length, index, ROWS)
        state, total, peak = _sum_of_keys(key, value, begin, end, index, feature, features, channel, width, LOGS)
        later, later_total, _ = _nothing(query, FEATURES, CHANNELS, LOGS)
        row = begin
        while row < end:
            rows, inside = row + index, row + index < end
            queries = _load(query, rows, inside, feature, features, _absent(LOGS))
            queries = _features_of_queries(queries, peak, _scale_of_queries(queries, peak, LOGS), LOGS)
            inverse = _inverse(tl.sum(queries * total[None, :], 1))
            gradients = _load(gradient, rows, inside, channel, width, 0.0) * inverse[:, None]
            mixed = _dot(gradients, tl.trans(state))
            offset = tl.sum(queries * mixed, 1) * inverse
            mixed -= offset[:, None] * total[None, :]
            _store(of_query, _to_logarithms(mixed, queries, LOGS), rows, inside, feature, features)
            later += _dot(tl.trans(queries), gradients)
            later_total -= tl.sum(queries * offset[:, None], 0)
            row += ROWS
        row = begin
        while row < end:
            rows, inside = row + index, row + index < end
            keys = _load(key, rows, inside, feature, features, _absent(LOGS))
            keys = _features_of_keys(keys, peak, inside, LOGS)
            values = _load(value, rows, inside, channel, width, 0.0)
            mixed = _dot(values, tl.trans(later)) + later_total[None, :]
            _store(of_key, _to_logarithms(mixed, keys, LOGS), rows, inside, feature, features)
            _store(of_value, _dot(keys, later), rows, inside, channel, width)
            row += ROWS
        begin = end


@triton.jit
def causal_queries(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, inverses, offsets, scales, sizes, peaks,
    heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, what keys and values get from queries of their own piece, and notes for `causal_keys`."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = _of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key, of_value = of_query + share * features, of_key + share * features, of_value + first * width
    inverses, offsets, scales, sizes, peaks = _notes(inverses, offsets, scales, sizes, peaks, share, features)
    length = _length(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state, total, peak = _nothing(query, FEATURES, CHANNELS, LOGS)
    row = length * 0
    while row < length:
        keys = _load(key, row + index, row + index < length, feature, features, _absent(LOGS))
        fresh = _begins(ids, row)
        state, total, peak = _forget(state, total, peak, fresh, LOGS)
        count, before, peak = _piece(keys, peak, ids, row, length, index, LOGS)
        inside = index < count
        rows = row + index
        keys = _features_of_keys(keys, peak, inside, LOGS)
        queries = _load(query, rows, inside, feature, features, _absent(LOGS))
        scale = _scale_of_queries(queries, peak, LOGS)
        queries = _features_of_queries(queries, peak, scale, LOGS)
        values = _load(value, rows, inside, channel, width, 0.0)
        state, total = _rescale(state, total, before, peak, LOGS)
        scores = _triangle(_dot(queries, tl.trans(keys)), index)
        inverse = _inverse(tl.sum(queries * total[None, :], 1) + tl.sum(scores, 1))
        gradients = _load(gradient, rows, inside, channel, width, 0.0) * inverse[:, None]
        mixed = _dot(gradients, tl.trans(state))
        of_scores = _triangle(_dot(gradients, tl.trans(values)), index)
        offset = (tl.sum(queries * mixed, 1) + tl.sum(scores * of_scores, 1)) * inverse
        of_scores = _triangle(of_scores - offset[:, None], index)
        mixed += _dot(of_scores, keys) - offset[:, None] * total[None, :]
        _store(of_query, _to_logarithms(mixed, queries, LOGS), rows, inside, feature, features)
        mixed = _dot(tl.trans(of_scores), queries)
        _store(of_key, _to_logarithms(mixed, keys, LOGS), rows, inside, feature, features)
        _store(of_value, _dot(tl.trans(scores), gradients), rows, inside, channel, width)
        tl.store(inverses + rows, inverse, mask=inside)
        tl.store(offsets + rows, offset, mask=inside)
        tl.store(sizes + row + count - 1, count.to(tl.int32))
        tl.store(scales + rows, scale, mask=inside)
        if LOGS:
            tl.store(peaks + row * features + feature, peak, mask=feature < features)
        state += _dot(tl.trans(keys), values)
        total += tl.sum(keys, 0)
        row += count


@triton.jit
def causal_keys(
    gradient, query, key, value, lengths, ids, of_query, of_key, of_value, inverses, offsets, scales, sizes, peaks,
    heads, positions, features, width,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """Adds what keys and values get from queries of later pieces, walking backward."""
    head = tl.program_id(0).to(tl.int64)
    first = head * positions
    query, key, value, gradient = _of_head(query, key, value, gradient, first, features, width)
    share = first + tl.program_id(1).to(tl.int64) * tl.num_programs(0) * positions
    of_query, of_key, of_value = of_query + share * features, of_key + share * features, of_value + first * width
    inverses, offsets, scales, sizes, peaks = _notes(inverses, offsets, scales, sizes, peaks, share, features)
    length = _length(lengths, head // heads, positions)
    if ids is not None:
        ids += (head // heads) * positions
    index = tl.arange(0, ROWS)
    feature = tl.arange(0, FEATURES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    later, later_total, above = _nothing(query, FEATURES, CHANNELS, LOGS)
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
            later, later_total = _rescale(later, later_total, tl.minimum(peak, above), above, LOGS)
        fresh = (end < length) & _begins(ids, tl.minimum(end, length - 1))
        later, later_total, above = _forget(later, later_total, above, fresh, LOGS)
        keys = _load(key, rows, inside, feature, features, _absent(LOGS))
        keys = _features_of_keys(keys, peak, inside, LOGS)
        values = _load(value, rows, inside, channel, width, 0.0)
        mixed = _dot(values, tl.trans(later)) + later_total[None, :]
        mixed = _to_logarithms(mixed, keys, LOGS) + _load(of_key, rows, inside, feature, features, 0.0)
        _store(of_key, mixed, rows, inside, feature, features)
        sums = _dot(keys, later) + _load(of_value, rows, inside, channel, width, 0.0)
        _store(of_value, sums, rows, inside, channel, width)
        queries = _load(query, rows, inside, feature, features, _absent(LOGS))
        scale = tl.load(scales + rows, mask=inside, other=0.0)
        queries = _features_of_queries(queries, peak, scale, LOGS)
        inverse = tl.load(inverses + rows, mask=inside, other=0.0)
        offset = tl.load(offsets + rows, mask=inside, other=0.0)
        gradients = _load(gradient, rows, inside, channel, width, 0.0) * inverse[:, None]
        later += _dot(tl.trans(queries), gradients)
        later_total -= tl.sum(queries * offset[:, None], 0)
        above = peak
        end = row


# Addresses: the rows of a program's head, the bounds of its sample's documents, and masked blocks of rows.


@triton.jit
def _of_head(query, key, value, other, first, features, width):
    return query + first * features, key + first * features, value + first * width, other + first * width


@triton.jit
def _notes(inverses, offsets, scales, sizes, peaks, share, features):
    return inverses + share, offsets + share, scales + share, sizes + share, peaks + share * features


@triton.jit
def _length(lengths, sample, positions):
    # Where there are no ids, the kernels have them as None; Triton 3.6 lets no function hand None back.
    length = sample * 0 + positions
    if lengths is not None:
        length = tl.maximum(tl.minimum(tl.load(lengths + sample), length), 0)
    return length


@triton.jit
def _begins(ids, row):
    """True where a document begins at a row."""
    result = row < 0
    if ids is not None:
        result = tl.load(ids + row) != tl.load(ids + tl.maximum(row - 1, 0))
    return result


@triton.jit
def _document_end(ids, begin, length, index, ROWS: tl.constexpr):
    end = length
    if ids is not None:
        first = tl.load(ids + begin)
        end = begin
        going = end < length
        while going:
            rows = end + index
            same = (rows < length) & (tl.load(ids + rows, mask=rows < length, other=0) == first)
            count = tl.min(tl.where(same, ROWS, index), 0)
            end += count
            going = count == ROWS
    return end


@triton.jit
def _load(tensor, rows, inside, column, columns, other: tl.constexpr):
    mask = inside[:, None] & (column < columns)[None, :]
    return tl.load(tensor + rows[:, None] * columns + column[None, :], mask=mask, other=other)


@triton.jit
def _store(tensor, matrix, rows, inside, column, columns):
    mask = inside[:, None] & (column < columns)[None, :]
    tl.store(tensor + rows[:, None] * columns + column[None, :], matrix, mask=mask)


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


# The state: sums over keys with their values (M, D), sums over keys (M) and the keys' peaks (M).


@triton.jit
def _nothing(like, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr):
    dtype: tl.constexpr = like.dtype.element_ty
    state = tl.zeros((FEATURES, CHANNELS), dtype)
    total = tl.zeros((FEATURES,), dtype)
    return state, total, tl.full((FEATURES,), NOTHING if LOGS else 0.0, dtype)


@triton.jit
def _forget(state, total, peak, fresh, LOGS: tl.constexpr):
    state = tl.where(fresh, 0.0, state)
    total = tl.where(fresh, 0.0, total)
    if LOGS:
        peak = tl.where(fresh, NOTHING, peak)
    return state, total, peak


@triton.jit
def _rescale(state, total, before, peak, LOGS: tl.constexpr):
    if LOGS:
        factor = tl.exp(before - peak)
        state *= factor[:, None]
        total *= factor
    return state, total


@triton.jit
def _piece(keys, peak, ids, row, length, index, LOGS: tl.constexpr):
    """(rows of the piece that begins at `row`, peaks before it, peaks after it)."""
    rows = row + index
    beyond = rows >= length
    if ids is not None:
        beyond |= tl.load(ids + rows, mask=rows < length, other=0) != tl.load(ids + row)
    before = peak
    if LOGS:
        first = tl.maximum(peak, tl.max(tl.where((index == 0)[:, None], keys, float("-inf")), 0))
        beyond |= tl.max(keys - first[None, :], 1) > LIMIT
    count = tl.min(tl.where(beyond, index, index.shape[0]), 0)
    if LOGS:
        peak = tl.maximum(first, tl.max(tl.where((index < count)[:, None], keys, float("-inf")), 0))
    return count, before, peak


@triton.jit
def _sum_of_keys(key, value, begin, end, index, feature, features, channel, width, LOGS: tl.constexpr):
    """The state after the rows of a whole document."""
    state, total, peak = _nothing(key, feature.shape[0], channel.shape[0], LOGS)
    row = begin
    while row < end:
        rows, inside = row + index, row + index < end
        keys = _load(key, rows, inside, feature, features, _absent(LOGS))
        before = peak
        if LOGS:
            peak = tl.maximum(peak, tl.max(keys, 0))
        state, total = _rescale(state, total, before, peak, LOGS)
        keys = _features_of_keys(keys, peak, inside, LOGS)
        state += _dot(tl.trans(keys), _load(value, rows, inside, channel, width, 0.0))
        total += tl.sum(keys, 0)
        row += index.shape[0]
    return state, total, peak


# Features on the scale of the peaks, so that no exponential overflows; without LOGS they pass as they are.


@triton.constexpr_function
def _absent(LOGS):
    """The value in place of a feature that is not there."""
    return float("-inf") if LOGS else 0.0


@triton.jit
def _features_of_keys(keys, peak, inside, LOGS: tl.constexpr):
    keys = tl.where(inside[:, None], keys, _absent(LOGS))
    if LOGS:
        keys = tl.exp(keys - peak[None, :])
    return keys


@triton.jit
def _scale_of_queries(queries, peak, LOGS: tl.constexpr):
    """Logarithm of the number (C) that each query's features are relative to."""
    return tl.maximum(tl.max(queries + peak[None, :], 1), NOTHING if LOGS else 0.0)


@triton.jit
def _features_of_queries(queries, peak, scale, LOGS: tl.constexpr):
    if LOGS:
        queries = tl.exp(queries + peak[None, :] - scale[:, None])
    return queries


@triton.jit
def _triangle(scores, index):
    return tl.where(index[:, None] >= index[None, :], scores, 0.0)


@triton.jit
def _inverse(weight):
    return tl.where(weight <= 0, 0.0, 1 / tl.where(weight <= 0, 1.0, weight))


@triton.jit
def _to_logarithms(matrix, features, LOGS: tl.constexpr):
    """Gradients of features to those of their logarithms."""
    if LOGS:
        matrix *= features
    return matrix
