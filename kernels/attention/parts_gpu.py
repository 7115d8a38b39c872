"""What the Triton programs of the linear attentions are made of: addresses, states and features."""

import triton
import triton.language as tl

LIMIT = tl.constexpr(40.0)
# Features of a product: how many are taken at once, and of more how many at a time.
MOST_AT_ONCE, PART = tl.constexpr(64), tl.constexpr(16)
NOTHING = tl.constexpr(-1e30)  # the scale of no key at all; finite, so that differences of scales are never NaN

# Addresses: the rows of a program's head, the bounds of its sample's documents, and masked blocks of rows.


@triton.jit
def rows_of_head(query, key, value, other, first, features, width):
    return query + first * features, key + first * features, value + first * width, other + first * width


@triton.jit
def where_head_begins(x, heads, positions, width, of_sample, of_head):
    """Rows (B, H, N, d) of a program's head, whose samples and heads are so far from each other; None: contiguous."""
    pair = tl.program_id(0).to(tl.int64)
    begin = pair * positions * width
    if of_sample is not None:
        begin = (pair // heads) * of_sample + (pair % heads) * of_head
    return x + begin


@triton.jit
def notes_of(inverses, offsets, scales, sizes, peaks, share, features):
    return inverses + share, offsets + share, scales + share, sizes + share, peaks + share * features


@triton.jit
def length_of(lengths, sample, positions):
    # Where there are no ids, the kernels have them as None; Triton 3.6 lets no function hand None back.
    length = sample * 0 + positions
    if lengths is not None:
        length = tl.maximum(tl.minimum(tl.load(lengths + sample), length), 0)
    return length


@triton.jit
def begins_document(ids, row):
    """True where a document begins at a row."""
    result = row < 0
    if ids is not None:
        result = tl.load(ids + row) != tl.load(ids + tl.maximum(row - 1, 0))
    return result


@triton.jit
def document_end(ids, begin, length, index, ROWS: tl.constexpr):
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
def own_documents(ids, length, rows, index, ROWS: tl.constexpr):
    """The first row of the first document that begins in a program's piece, and the one behind the piece."""
    begin = length * 0 + tl.program_id(2) * rows
    behind = tl.minimum(begin + rows, length)
    if ids is not None:
        within = (begin > 0) & (begin < length)
        if within:
            begin = document_end(ids, begin - 1, length, index, ROWS)
    return begin, behind


@triton.jit
def load_rows(tensor, rows, inside, column, columns, other: tl.constexpr, apart=None):
    """Rows that are `apart` from each other; None: there is nothing between them."""
    mask = inside[:, None] & (column < columns)[None, :]
    rows = rows[:, None] * columns if apart is None else rows[:, None] * apart
    return tl.load(tensor + rows + column[None, :], mask=mask, other=other)


@triton.jit
def store_rows(tensor, matrix, rows, inside, column, columns, apart=None):
    mask = inside[:, None] & (column < columns)[None, :]
    rows = rows[:, None] * columns if apart is None else rows[:, None] * apart
    tl.store(tensor + rows + column[None, :], matrix.to(tensor.dtype.element_ty), mask=mask)


@triton.jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def product_of_features(a, b):
    """`product` over features. A thread would have all of them of its rows and columns in registers, at once."""
    FEATURES: tl.constexpr = a.shape[1]
    if FEATURES <= MOST_AT_ONCE:
        found = product(a, b)
    else:
        parts = tl.permute(tl.reshape(a, (a.shape[0], FEATURES // PART, PART)), (1, 0, 2))
        found = tl.sum(product(parts, tl.reshape(b, (FEATURES // PART, PART, b.shape[1]))), 0)
    return found


# The state: sums over keys with their values (M, D), sums over keys (M) and the keys' peaks (M).


@triton.jit
def no_keys(like, FEATURES: tl.constexpr, CHANNELS: tl.constexpr, LOGS: tl.constexpr):
    dtype: tl.constexpr = like.dtype.element_ty
    state = tl.zeros((FEATURES, CHANNELS), dtype)
    total = tl.zeros((FEATURES,), dtype)
    return state, total, tl.full((FEATURES,), NOTHING if LOGS else 0.0, dtype)


@triton.jit
def forget(state, total, peak, fresh, LOGS: tl.constexpr):
    state = tl.where(fresh, 0.0, state)
    total = tl.where(fresh, 0.0, total)
    if LOGS:
        peak = tl.where(fresh, NOTHING, peak)
    return state, total, peak


@triton.jit
def rescale(state, total, before, peak, LOGS: tl.constexpr):
    if LOGS:
        factor = tl.exp(before - peak)
        state *= factor[:, None]
        total *= factor
    return state, total


@triton.jit
def next_piece(keys, peak, ids, row, length, index, LOGS: tl.constexpr):
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
def sum_of_keys(key, value, begin, end, index, feature, features, channel, width, value_row, LOGS: tl.constexpr):
    """The state after the rows of a whole document."""
    state, total, peak = no_keys(key, feature.shape[0], channel.shape[0], LOGS)
    row = begin
    while row < end:
        rows, inside = row + index, row + index < end
        keys = load_rows(key, rows, inside, feature, features, absent(LOGS))
        before = peak
        if LOGS:
            peak = tl.maximum(peak, tl.max(keys, 0))
        state, total = rescale(state, total, before, peak, LOGS)
        keys = features_of_keys(keys, peak, inside, LOGS)
        values = load_rows(value, rows, inside, channel, width, 0.0, value_row)
        state += product(tl.trans(keys), values.to(state.dtype))
        total += tl.sum(keys, 0)
        row += index.shape[0]
    return state, total, peak


# Features on the scale of the peaks, so that no exponential overflows; without LOGS they pass as they are.


@triton.constexpr_function
def absent(LOGS):
    """The value in place of a feature that is not there."""
    return float("-inf") if LOGS else 0.0


@triton.jit
def features_of_keys(keys, peak, inside, LOGS: tl.constexpr):
    keys = tl.where(inside[:, None], keys, absent(LOGS))
    if LOGS:
        keys = tl.exp(keys - peak[None, :])
    return keys


@triton.jit
def scale_of_queries(queries, peak, LOGS: tl.constexpr):
    """Logarithm of the number (C) that each query's features are relative to."""
    return tl.maximum(tl.max(queries + peak[None, :], 1), NOTHING if LOGS else 0.0)


@triton.jit
def features_of_queries(queries, peak, scale, LOGS: tl.constexpr):
    if LOGS:
        queries = tl.exp(queries + peak[None, :] - scale[:, None])
    return queries


@triton.jit
def lower_triangle(scores, index):
    return tl.where(index[:, None] >= index[None, :], scores, 0.0)


@triton.jit
def inverse_of(weight):
    return tl.where(weight <= 0, 0.0, 1 / tl.where(weight <= 0, 1.0, weight))


@triton.jit
def to_logarithms(matrix, features, LOGS: tl.constexpr):
    """Gradients of features to those of their logarithms."""
    if LOGS:
        matrix *= features
    return matrix
