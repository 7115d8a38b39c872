"""Logarithms of random features in Triton, one launch forward and one backward.

Rows are taken in pieces, for which a program holds the projection. The gradient of a table of biases is not added up
between programs: each of them has some rows of the table, and walks over the tokens that read these.
"""

import torch
import triton
import triton.language as tl

from ..attention.parts_gpu import product
from ..common.interpreter import interpreted
from .operator import rows_like

# Rows of a block, and programs of a launch: two for each multiprocessor of the largest of our cards. Of the projection
# a program holds as many features as fit into the registers of its threads, as benchmarks/gpu_model shows.
ROWS, PROGRAMS, PROJECTION_BYTES = (4, 6, 1024) if interpreted() else (16, 264, 16384)
FEWEST = 16  # that a product of matrices takes
# Without the limit ptxas may take the fewest registers, and spill most of them.
WARPS, REGISTERS = 8, 255


@triton.jit
def _load(rows, inside, column, columns, like):
    mask = inside[:, None] & (column < columns)[None, :]
    return tl.load(rows, mask=mask, other=0.0).to(like.dtype.element_ty)


@triton.jit
def _rows(x, sample, head, row, column, batch_stride, head_stride, row_stride):
    """Pointers (rows, columns) of rows of samples, which are vectors or numbers."""
    start = sample.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride + row.to(tl.int64) * row_stride
    return x + start[:, None] + column[None, :]


@triton.jit
def _projected(projection, feature, features, channel, width, scale):
    mask = (feature < features)[:, None] & (channel < width)[None, :]
    return tl.load(projection + feature[:, None] * width + channel[None, :], mask=mask, other=0.0) * scale


@triton.jit
def make_features(x, projection, bias, positions, lengths, result, heads, count, width, features, places, rows,
                  bias_batch, scale, half, x_batch, x_head, x_row, RELATIVE: tl.constexpr, ROWS: tl.constexpr,
                  WIDTH: tl.constexpr, FEATURES: tl.constexpr):  # fmt: skip
    """The logarithms (B, H, N, m) of a piece of a head's rows."""
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    channel, feature = tl.arange(0, WIDTH), tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    length = sample * 0 + count
    if lengths is not None:
        length = tl.load(lengths + sample).to(tl.int32)
    if bias is not None:
        bias += sample.to(tl.int64) * bias_batch + head.to(tl.int64) * places * features
    result += pair.to(tl.int64) * count * features
    weights = tl.trans(_projected(projection, feature, features, channel, width, scale))
    begin = tl.program_id(1) * rows
    end = tl.minimum(begin + rows, count)
    while begin < end:
        row = begin + tl.arange(0, ROWS)
        inside = row < end
        pointers = _rows(x, sample, head, row, channel, x_batch, x_head, x_row)
        known = _load(pointers, row < tl.minimum(end, length), channel, width, result)
        logs = product(known, weights)
        if not RELATIVE:
            logs -= tl.sum(known * known, 1)[:, None] * half
        written = inside[:, None] & (feature < features)[None, :]
        if bias is not None:
            place = row
            if positions is not None:
                at = positions + sample.to(tl.int64) * count + row
                place = tl.load(at, mask=inside, other=0).to(tl.int32)
            logs += tl.load(bias + place[:, None] * features + feature[None, :], mask=written, other=0.0)
        tl.store(result + row[:, None] * features + feature[None, :], logs, mask=written)
        begin += ROWS


@triton.jit
def unmake_features(gradient, x, projection, order, starts, lengths, of_x, of_bias, heads, count, width, features,
                    places, samples, rows, scale, per_root, x_batch, x_head, x_row, of_x_block, of_x_batch, of_x_head,
                    of_x_row, RELATIVE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                    FEATURES: tl.constexpr):  # fmt: skip
    """Gradients of the tokens at a piece of a head's places, and of these rows of the table of biases.

    A place is that of `samples` samples, or has the tokens order[starts[place]] .. order[starts[place + 1] - 1].
    Where there are several blocks of features, each has a part of the tokens' gradients.
    """
    group, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    channel, feature = tl.arange(0, WIDTH), tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    of_x += tl.program_id(2).to(tl.int64) * of_x_block
    weights = _projected(projection, feature, features, channel, width, scale)
    begin = tl.program_id(1) * rows
    end = tl.minimum(begin + rows, places)
    while begin < end:
        place = begin + tl.arange(0, ROWS)
        first = place.to(tl.int64) * 0
        number = tl.where(place < end, samples, 0).to(tl.int64)
        if order is not None:
            first = tl.load(starts + place, mask=place < end, other=0)
            number = tl.load(starts + place + 1, mask=place < end, other=0) - first
        total = tl.zeros((ROWS, FEATURES), gradient.dtype.element_ty)
        most = tl.max(number, 0)
        turn = most * 0
        while turn < most:
            inside = turn < number
            if order is not None:
                token = tl.load(order + first + turn, mask=inside, other=0)
                sample, row = token // count, token % count
            else:
                sample, row = first + group * samples + turn, place.to(tl.int64)
            known = inside
            if lengths is not None:
                known = inside & (row < tl.load(lengths + sample, mask=inside, other=0))
            pointers = gradient + ((sample * heads + head) * count + row)[:, None] * features + feature[None, :]
            gradients = _load(pointers, known, feature, features, gradient)
            total += gradients
            of_rows = product(gradients, weights)
            if not RELATIVE:
                pointers = _rows(x, sample, head, row, channel, x_batch, x_head, x_row)
                tokens = _load(pointers, known, channel, width, gradient)
                of_rows -= tokens * tl.sum(gradients, 1)[:, None] * per_root
            pointers = _rows(of_x, sample, head, row, channel, of_x_batch, of_x_head, of_x_row)
            written = inside[:, None] & (channel < width)[None, :]
            tl.store(pointers, of_rows.to(of_x.dtype.element_ty), mask=written)
            turn += 1
        if of_bias is not None:
            pointers = of_bias + (tl.program_id(0).to(tl.int64) * places + place)[:, None] * features + feature[None, :]
            tl.store(pointers, total, mask=(place < end)[:, None] & (feature < features)[None, :])
        begin += ROWS


def log_features(x, projection, bias, positions, order, starts, lengths, relative):
    """The operator of operator.py: (B, H, N, m)."""
    batch, heads, count, width = x.shape
    result = projection.new_empty(*x.shape[:3], len(projection))
    blocks, options = _options(projection, width)
    pieces, rows = _pieces(batch * heads * blocks, count)
    shared = bias is None or len(bias) == 1
    places = count if bias is None else bias.shape[2]
    make_features[batch * heads, pieces, blocks](
        x, projection, bias, positions, lengths, result, heads, count, width, len(projection), places, rows,
        0 if shared else bias.stride(0), width**-0.25, 0.5 * width**-0.5, *x.stride()[:3], RELATIVE=relative, **options,
    )  # fmt: skip
    return result


def log_features_backward(gradient, x, projection, bias, order, starts, lengths, relative):
    """Gradients of x and of the biases."""
    batch, heads, count, width = x.shape
    blocks, options = _options(projection, width)
    of_x = rows_like(x)
    parts = of_x[None] if blocks == 1 else gradient.new_empty(blocks, *x.shape)
    of_bias = x.new_empty(0) if bias is None else torch.empty_like(bias)
    groups = batch if bias is None else len(bias)
    places = count if bias is None else bias.shape[2]
    pieces, rows = _pieces(groups * heads * blocks, places)
    unmake_features[groups * heads, pieces, blocks](
        gradient, x, projection, order, starts, lengths, parts, None if bias is None else of_bias, heads, count, width,
        len(projection), places, batch // groups, rows, width**-0.25, width**-0.5, *x.stride()[:3],
        *parts.stride()[:4], RELATIVE=relative, **options,
    )  # fmt: skip
    return of_x if blocks == 1 else of_x.copy_(parts.sum(0)), of_bias


def _pieces(heads: int, rows: int) -> tuple[int, int]:
    """How many pieces the rows of each head are cut into, and rows of a piece: whole blocks."""
    wanted = triton.cdiv(PROGRAMS, heads)
    size = ROWS * max(1, rows // (wanted * ROWS))
    return triton.cdiv(rows, size), size


def _options(projection: torch.Tensor, width: int) -> tuple[int, dict]:
    """How many blocks the features are cut into, and sizes of blocks.

    Raises:
        ValueError: channels of which no block is known to fit into a program of every card.
    """
    channels = max(FEWEST, triton.next_power_of_2(width))
    features = PROJECTION_BYTES // (channels * projection.itemsize)
    if features < FEWEST and not interpreted():
        most = PROJECTION_BYTES // (FEWEST * projection.itemsize)
        raise ValueError(
            f"the Triton kernel of random features has queries of {width} channels in {projection.dtype}; allowed: "
            f"at most {most}; set LONGMIX_KERNELS=portable"
        )
    features = min(max(features, FEWEST), max(FEWEST, triton.next_power_of_2(len(projection))))
    blocks = {"ROWS": ROWS, "WIDTH": channels, "FEATURES": features}
    return triton.cdiv(len(projection), features), {**blocks, "num_warps": WARPS, "maxnreg": REGISTERS}
