"""What the Triton programs of the linear attentions are made of: addresses, states and features."""

import triton
import triton.language as tl

LIMIT = tl.constexpr(40.0)
# Features of a product: how many a thread takes at once, and of more how many at a time.
MOST_AT_ONCE, PART = tl.constexpr(64), tl.constexpr(16)
NOTHING = tl.constexpr(-1e30)  # the scale of no key at all; finite, so that differences of scales are never NaN

# Addresses: the rows of a program's head, the bounds of its sample's documents, and masked blocks of rows.


@triton.jit
def rows_of_head(query, key, value, other, first, features, width):
    return query + first * features, key + first * features, value + first * width, other + first * width


@triton.jit
def where_head_begins(x, heads, of_sample, of_head):
    """Rows (B, H, N, d) of a program's head, whose samples and heads are so far from each other."""
    pair = tl.program_id(0).to(tl.int64)
    return x + (pair // heads) * of_sample + (pair % heads) * of_head


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
def continues_document(ids, row):
    """True where a row's document goes on, from the row before it."""
    return begins_document(ids, row) == 0


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
def load_rows(tensor, row, inside, column, columns, apart=None):
    """A block of rows (C, D) from `row` on that are `apart` from each other; None: there is nothing between them."""
    places, mask = _places(tensor, row, inside, column, columns, apart)
    return tl.load(places, mask=mask, other=0.0)


@triton.jit
def store_rows(tensor, matrix, row, inside, column, columns, apart=None):
    places, mask = _places(tensor, row, inside, column, columns, apart)
    tl.store(places, matrix.to(tensor.dtype.element_ty), mask=mask)


@triton.jit
def _places(tensor, row, inside, column, columns, apart):
    """Pointers (C, D) and mask. Only where the block begins takes 64 bits."""
    index = tl.arange(0, inside.shape[0])
    begin = tensor + (row.to(tl.int64) * columns if apart is None else row.to(tl.int64) * apart)
    rows = index[:, None] * columns if apart is None else index[:, None] * apart
    return begin + rows + column[None, :], inside[:, None] & (column < columns)[None, :]


# Features of rows, (M, C), and what they sum up to stand feature by feature.


@triton.jit
def load_features(tensor, row, inside, feature, features, other: tl.constexpr):
    places, mask = _places(tensor, row, inside, feature, features, None)
    return tl.load(tl.trans(places), mask=tl.trans(mask), other=other)


@triton.jit
def store_features(tensor, matrix, row, inside, feature, features):
    places, mask = _places(tensor, row, inside, feature, features, None)
    tl.store(tl.trans(places), matrix.to(tensor.dtype.element_ty), mask=tl.trans(mask))


# Products of matrices, by a rule. "tf32": on tensor cores, of factors with 11 binary digits, as many as half precision
# has; features, gradients and states are rounded to these. There each warp has some of a product's rows, which are the
# features; in sums over features it has some of their parts. "tf32x3": on tensor cores from three such products, which
# keep fp32's digits. "ieee": one by one; a thread has all that it needs of a row and a column in registers.


@triton.jit
def rounded(x, RULE: tl.constexpr):
    """To the nearest number of tensor cores, which would cut off the other digits, and so make sums smaller."""
    if RULE == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        # Not more than what is NaN after it, too: the largest bits, an NVIDIA card's own NaN, would turn into zero.
        size = (tl.minimum(bits & 0x7FFFFFFF, 0x7FFFEFFF) + 0x1000) & -0x2000
        x = (size | (bits & -0x80000000)).to(tl.float32, bitcast=True)
    return x


@triton.jit
def product(a, b, RULE: tl.constexpr):
    return tl.dot(a, b, input_precision=RULE, out_dtype=a.dtype)


@triton.jit
def over_features(a, b, RULE: tl.constexpr):
    """Features (M, C) by a state (M, D): (C, D). In parts, where all features of a row are too many for a thread."""
    FEATURES: tl.constexpr = a.shape[0]
    b = rounded(b, RULE)
    if RULE == "ieee" and FEATURES <= MOST_AT_ONCE:
        found = product(tl.trans(a), b, RULE)
    else:
        parts = tl.permute(tl.reshape(a, (FEATURES // PART, PART, a.shape[1])), (0, 2, 1))
        found = tl.sum(product(parts, tl.reshape(b, (FEATURES // PART, PART, b.shape[1])), RULE), 0)
    return found


@triton.jit
def to_features(x, b, RULE: tl.constexpr):
    """Rows (C, D) by a state (M, D): (M, C)."""
    b = rounded(b, RULE)
    return tl.trans(product(x, tl.trans(b), RULE)) if RULE == "ieee" else product(b, tl.trans(x), RULE)


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
def next_step(keys, peak, ids, row, end, index, LOGS: tl.constexpr):
    """(rows of the step that begins at `row`, peaks before it, peaks after it)."""
    rows = row + index
    beyond = rows >= end
    if ids is not None:
        beyond |= tl.load(ids + rows, mask=rows < end, other=0) != tl.load(ids + row)
    before = peak
    if LOGS:
        first = tl.maximum(peak, tl.max(tl.where((index == 0)[None, :], keys, float("-inf")), 1))
        beyond |= tl.max(keys - first[:, None], 0) > LIMIT
    count = tl.min(tl.where(beyond, index, index.shape[0]), 0)
    if LOGS:
        peak = tl.maximum(first, tl.max(tl.where((index < count)[None, :], keys, float("-inf")), 1))
    return count, before, peak


@triton.jit
def sum_of_keys(
    key, value, begin, end, index, feature, features, channel, width, value_row, LOGS: tl.constexpr, RULE: tl.constexpr
):  # fmt: skip
    """The state after the rows of a whole document."""
    state, total, peak = no_keys(key, feature.shape[0], channel.shape[0], LOGS)
    row = begin
    while row < end:
        inside = index < end - row
        keys = load_features(key, row, inside, feature, features, absent(LOGS))
        before = peak
        if LOGS:
            peak = tl.maximum(peak, tl.max(keys, 1))
        state, total = rescale(state, total, before, peak, LOGS)
        keys = features_of_keys(keys, peak, inside, LOGS, RULE)
        values = load_rows(value, row, inside, channel, width, value_row)
        state += product(keys, values.to(state.dtype), RULE)
        total += tl.sum(keys, 1)
        row += index.shape[0]
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
def store_piece(state, total, peak, states, totals, peaks, LOGS: tl.constexpr):
    """Write what the program's own piece sums up to."""
    tl.store(state_of_piece(states, tl.program_id(2), state.shape[0], state.shape[1]), state)
    tl.store(total_of_piece(totals, tl.program_id(2), state.shape[0]), total)
    if LOGS:
        tl.store(total_of_piece(peaks, tl.program_id(2), state.shape[0]), peak)


@triton.jit
def add_piece(state, total, peak, states, totals, peaks, piece, LOGS: tl.constexpr):
    """The state with what the keys of another piece sum up to."""
    own = tl.load(state_of_piece(states, piece, state.shape[0], state.shape[1]))
    own_total = tl.load(total_of_piece(totals, piece, state.shape[0]))
    before, own_peak = peak, peak
    if LOGS:
        own_peak = tl.load(total_of_piece(peaks, piece, state.shape[0]))
        peak = tl.maximum(peak, own_peak)
    state, total = rescale(state, total, before, peak, LOGS)
    own, own_total = rescale(own, own_total, own_peak, peak, LOGS)
    return state + own, total + own_total, peak


# Features on the scale of the peaks, so that no exponential overflows; without LOGS they pass as they are.


@triton.constexpr_function
def absent(LOGS):
    """The value in place of a feature that is not there."""
    return float("-inf") if LOGS else 0.0


@triton.jit
def features_of_keys(keys, peak, inside, LOGS: tl.constexpr, RULE: tl.constexpr):
    keys = tl.where(inside[None, :], keys, absent(LOGS))
    if LOGS:
        keys = tl.exp(keys - peak[:, None])
    return rounded(keys, RULE)


@triton.jit
def scale_of_queries(queries, peak, LOGS: tl.constexpr):
    """Logarithm of the number (C) that each query's features are relative to."""
    return tl.maximum(tl.max(queries + peak[:, None], 0), NOTHING if LOGS else 0.0)


@triton.jit
def features_of_queries(queries, peak, scale, LOGS: tl.constexpr, RULE: tl.constexpr):
    if LOGS:
        queries = tl.exp(queries + peak[:, None] - scale[None, :])
    return rounded(queries, RULE)


@triton.jit
def weights_of_queries(queries, total):
    """What the queries (M, C) sum to with all keys' features: (C)."""
    return tl.sum(queries * total[:, None], 0)


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
