"""Paramixer's product of sparse factors in Triton, one kernel for each factor."""

import math

import torch
import triton
from triton import language as tl

from ..common.grids import checked
from ..common.interpreter import interpreted
from .rows import clear, prepare

# Rows and channels of a program.
if interpreted():
    ROWS, CHANNELS = 16, 32
else:
    ROWS, CHANNELS = 32, 64


def link_mix(value, weights, offsets, lengths, document_ids, wrap):
    """All factors on value (B, N, D); see operator.py."""
    mixed, *links, valid = prepare(value, weights, offsets, lengths, document_ids)
    for factor in range(weights.shape[2]):
        mixed = _apply(mixed, *links, wrap, factor)
    return clear(mixed, valid).to(value.dtype)


def link_mix_backward(gradient, value, weights, offsets, lengths, document_ids, wrap):
    """Gradients of value and weights."""
    dtypes = value.dtype, weights.dtype
    value, *links, valid = prepare(value, weights, offsets, lengths, document_ids)
    links = *links, wrap
    count = weights.shape[2]
    of_value, of_weights = gradient.to(value.dtype), torch.empty_like(links[0])
    # Of M inputs only every sqrt(M)-th is kept, and those between two of them while they are needed.
    stride = max(1, math.isqrt(count))
    kept = [value]
    for factor in range((count - 1) // stride * stride):
        value = _apply(value, *links, factor)
        if (factor + 1) % stride == 0:
            kept.append(value)
    for first in reversed(range(0, count, stride)):
        inputs = [kept.pop()]
        for factor in range(first, min(first + stride, count) - 1):
            inputs.append(_apply(inputs[-1], *links, factor))
        for factor in reversed(range(first, first + len(inputs))):
            _differentiate(of_value, inputs.pop(), of_weights, *links[1:], factor)
            of_value = _apply(of_value, *links, factor, transposed=True)
    return clear(of_value, valid).to(dtypes[0]), clear(of_weights, valid).to(dtypes[1])


# Launches: one kernel for each factor, for a row reads what others have got from the factor before.


def _apply(value, weights, offsets, start, length, wrap, factor, transposed=False):
    """(I + W) value of one factor, or (I + W^T) value."""
    result = torch.empty_like(value)
    batch, positions, width = value.shape
    grid = checked(triton.cdiv(positions, ROWS), triton.cdiv(width, CHANNELS), batch)
    _add_links[grid](
        *(value, weights, offsets, start, length, result, positions, width, *weights.shape[2:], factor),
        *(wrap, transposed, ROWS, CHANNELS),
    )
    return result


def _differentiate(gradient, value, of_weights, offsets, start, length, wrap, factor):
    """Write the gradient of one factor's weights: <gradient, value that a link leads to>."""
    batch, positions, width = value.shape
    _dot_products[checked(triton.cdiv(positions, ROWS), batch)](
        *(gradient, value, of_weights, offsets, start, length, positions, width, *of_weights.shape[2:], factor),
        *(wrap, ROWS, CHANNELS),
    )


# Kernels: links of a row that stay in its document, gathered for a block of rows.


@triton.jit
def _ends(row, offset, first, count, exists, WRAP: tl.constexpr):
    """Rows that are `offset` away within documents that begin at `first` and have `count` rows, and which exist."""
    moved = row - first + offset
    if WRAP:
        # Twice, since the remainder of a negative number may be negative.
        return first + (moved % count + count) % count, exists
    return first + moved, exists & (moved >= 0) & (moved < count)


@triton.jit
def _add_links(
    value,
    weights,
    offsets,
    start,
    length,
    result,
    positions,
    width,
    factors,
    links,
    factor,
    WRAP: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One factor on a block of rows and channels. The transposed factor gathers from where its links come."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64) * positions
    exists = row < positions
    inside = channel < width
    first = tl.load(start + sample + row, exists, 0)
    count = tl.load(length + sample + row, exists, 1)
    place = (sample + row)[:, None] * width + channel
    total = tl.load(value + place, exists[:, None] & inside, 0)
    for link in range(links):
        offset = tl.load(offsets + factor * links + link)
        if TRANSPOSED:
            other, there = _ends(row, -offset, first, count, exists, WRAP)
            owner = other
        else:
            other, there = _ends(row, offset, first, count, exists, WRAP)
            owner = row
        weight = tl.load(weights + ((sample + owner) * factors + factor) * links + link, there, 0)
        linked = tl.load(value + (sample + other)[:, None] * width + channel, there[:, None] & inside, 0)
        total += weight[:, None] * linked
    tl.store(result + place, total, exists[:, None] & inside)


@triton.jit
def _dot_products(
    gradient,
    value,
    of_weights,
    offsets,
    start,
    length,
    positions,
    width,
    factors,
    links,
    factor,
    WRAP: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The gradient of one factor's weights for a block of rows; zero for dropped links."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    sample = tl.program_id(1).to(tl.int64) * positions
    exists = row < positions
    first = tl.load(start + sample + row, exists, 0)
    count = tl.load(length + sample + row, exists, 1)
    for link in range(links):
        offset = tl.load(offsets + factor * links + link)
        other, there = _ends(row, offset, first, count, exists, WRAP)
        total = tl.zeros((ROWS,), of_weights.dtype.element_ty)
        for block in range(0, width, CHANNELS):
            channel = block + tl.arange(0, CHANNELS)
            mask = there[:, None] & (channel < width)
            own = tl.load(gradient + (sample + row)[:, None] * width + channel, mask, 0)
            linked = tl.load(value + (sample + other)[:, None] * width + channel, mask, 0)
            total += tl.sum(own * linked, 1)
        tl.store(of_weights + ((sample + row) * factors + factor) * links + link, total, exists)
