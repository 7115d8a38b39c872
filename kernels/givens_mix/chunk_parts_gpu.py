"""What Triton's programs for chunks of rotations are made of: small matrix products, turns, and where things stand."""

import triton
import triton.language as tl

from ..common.products_gpu import rounded

# A chunk's rotations as one small matrix product.


@triton.jit
def chain(sines, count, line, SIZE: tl.constexpr):
    """Products of -sine over the rotations between two, [k, j] = prod_{k < i < j} for k < j, else 0; over all behind
    each one, prod_{i > k}; over all before it, prod_{i < k}. `count` are there; those behind hand on what they get.
    """
    row, column = line[:, None], line[None, :]
    between = (column > row + 1) & (column - 1 < count)
    factors = -tl.load(sines + tl.maximum(column - 1, 0) + row * 0, mask=between, other=-1.0)
    products = tl.where(column > row, tl.cumprod(factors, 1), 0.0)
    first, last = -tl.load(sines), -tl.load(sines + SIZE - 1, mask=count > SIZE - 1, other=-1.0)
    behind = tl.where(line == SIZE - 1, 1.0, tl.sum(tl.where(column == SIZE - 1, products, 0.0), 1) * last)
    before = tl.where(line == 0, 1.0, tl.sum(tl.where(row == 0, products, 0.0), 0) * first)
    return products, behind, before


@triton.jit
def rotations(cosines, sines, line, CHUNK: tl.constexpr):
    """Cosines and sines of a chunk's rotations, and its `chain`."""
    products, behind, before = chain(sines, CHUNK, line, CHUNK)
    return tl.load(cosines + line), tl.load(sines + line), products, behind, before


@triton.jit
def descend(x, carry, cosine, sine, products, behind):
    """O x for rows (rows, channels): what each rotation got from the one behind it, and what it wrote one row on."""
    cosine, sine = cosine[:, None], sine[:, None]
    got = tl.dot(products, cosine * x, input_precision="tf32x3") + behind[:, None] * carry
    return got, sine * x + cosine * got


@triton.jit
def ascend(x, carry, cosine, sine, products, before):
    """O^T x for rows that are one row on: what each rotation wrote, and what it handed to the one behind it."""
    cosine, sine = cosine[:, None], sine[:, None]
    got = tl.dot(tl.trans(products), cosine * x, input_precision="tf32x3") + before[:, None] * carry
    return cosine * got + sine * x, cosine * x - sine * got


@triton.jit
def weigh(weights, x, HALVES: tl.constexpr):
    """Sums of rows by weights, in fp32. HALVES: rows of half precision are numbers of tensor cores as they are, so that
    the weights in two parts take two products, where fp32's take three."""
    if HALVES:
        large = rounded(weights, "tf32")
        found = tl.dot(weights - large, x, input_precision="tf32")
        found = tl.dot(large, x, found, input_precision="tf32")
    else:
        found = tl.dot(weights, x, input_precision="tf32x3")
    return found


@triton.jit
def turn(real, imaginary, cosine, sine):
    return real * cosine - imaginary * sine, real * sine + imaginary * cosine


@triton.jit
def cross(real, imaginary, of_real, of_imaginary):
    """For each row the derivative by the angle of a turn, the same before and after it."""
    return tl.sum(of_imaginary * real - of_real * imaginary, 1)


@triton.jit
def by_rotation(read, got, wrote, handed_on):
    """For each row the derivative by the angle of its rotation, from a `descend` and the `ascend` that is its adjoint.

    One of the two has the states, and the other their gradients.
    """
    return tl.sum(handed_on * read - wrote * got, 1)


# Where a program's rows, tables and carries stand.


@triton.jit
def place(pair, chunk, block, positions, heads, width, rows, head_stride, channel_stride,
           CHUNK: tl.constexpr, CHANNELS: tl.constexpr, TABLES: tl.constexpr):  # fmt: skip
    """Offsets of the first table; rows, channels; offsets into value."""
    line = tl.arange(0, CHUNK)
    row = chunk * CHUNK + line
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    row_stride = 2 * heads * width
    start = (pair // heads).to(tl.int64) * positions * row_stride + (pair % heads) * head_stride
    offsets = start + row[:, None].to(tl.int64) * row_stride + (channel * channel_stride)[None, :]
    return pair.to(tl.int64) * TABLES * rows + chunk * CHUNK, line, row, channel, offsets


@triton.jit
def read(x, offsets, part, mask):
    real = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    return real, tl.load(x + offsets + part, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def write(x, offsets, part, mask, real, imaginary):
    tl.store(x + offsets, real.to(x.dtype.element_ty), mask=mask)
    tl.store(x + offsets + part, imaginary.to(x.dtype.element_ty), mask=mask)


@triton.jit
def carry(carries, pair, chunk, chunks, number, channel, width, INFLOWS: tl.constexpr):
    """Offsets (channels) of a carry's real parts in (B, H, inflows, chunks, d, 2)."""
    return carries + (((pair.to(tl.int64) * INFLOWS + number) * chunks + chunk) * width + channel) * 2


@triton.jit
def inflow(carries, pair, chunk, chunks, number, channel, width, INFLOWS: tl.constexpr):
    at = carry(carries, pair, chunk, chunks, number, channel, width, INFLOWS)
    mask = channel < width
    return tl.load(at, mask=mask, other=0.0)[None, :], tl.load(at + 1, mask=mask, other=0.0)[None, :]
