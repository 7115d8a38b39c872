"""What the Triton programs of the linear attentions are made of: rows, where they lie, and products of matrices."""

import triton
import triton.language as tl

from ..common.products_gpu import rounded

# Features of a product: how many a thread takes at once, and of more how many at a time.
MOST_AT_ONCE, PART = tl.constexpr(64), tl.constexpr(16)

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
    end = length.to(begin.dtype)  # a loop's variables keep their types
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
def goes_on(ids, row, length):
    """True where the row before this one, of a sample of so many, is of the same document."""
    result = (row > 0) & (row < length)
    if ids is not None:
        result = continues_document(ids, tl.where(result, row, 0)) & result
    return result


@triton.jit
def load_rows(tensor, row, inside, column, columns, apart=None):
    """A block of rows (C, D) from `row` on that are `apart` from each other; None: there is nothing between them."""
    places, mask = places_of(tensor, row, inside, column, columns, apart)
    return tl.load(places, mask=mask, other=0.0)


@triton.jit
def store_rows(tensor, matrix, row, inside, column, columns, apart=None):
    places, mask = places_of(tensor, row, inside, column, columns, apart)
    tl.store(places, matrix.to(tensor.dtype.element_ty), mask=mask)


@triton.jit
def places_of(tensor, row, inside, column, columns, apart):
    """Pointers (C, D) and mask. Only where the block begins takes 64 bits."""
    index = tl.arange(0, inside.shape[0])
    begin = tensor + tl.cast(row, tl.int64) * (columns if apart is None else apart)
    rows = index[:, None] * columns if apart is None else index[:, None] * apart
    return begin + rows + column[None, :], inside[:, None] & (column < columns)[None, :]


# Products of matrices, by a rule (products_gpu.py). "tf32": features, gradients and states are rounded; each warp has
# some of a product's rows, which are the features; in sums over features it has some of their parts. "ieee": a thread
# has all that it needs of a row and a column in registers.


@triton.jit
def product(a, b, RULE: tl.constexpr):
    return tl.dot(a, b, input_precision=RULE, out_dtype=a.dtype)


@triton.jit
def over_features(a, b, RULE: tl.constexpr):
    """Features (M, C) by a state (M, D): (C, D). In parts, where all features of a row are too many for a thread."""
    FEATURES: tl.constexpr = a.shape[0]
    b = rounded(b, RULE)
    if RULE != "ieee" or FEATURES <= MOST_AT_ONCE:
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
