"""Triton programs that make the tables of one order from angles, and the angles' gradients from the tables' sums."""

import triton
import triton.language as tl

from ..common.lengths_gpu import length_of

# A turn in two parts: angles may be large, and phases add up over the row.
TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _double(x):
    """Float64, of half precision by way of fp32: Triton's interpreter cannot do it at once."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x.to(tl.float64)


@triton.jit
def _load(angles, row, stride, part, part_stride, valid):
    return _double(tl.load(angles + row.to(tl.int64) * stride + part * part_stride, mask=valid, other=0.0))


@triton.jit
def _store_turn(table, rows, row, mask, angle):
    """Keep cosines and sines of angles (float64), brought within a turn first."""
    angle = (angle - TURN * tl.floor(angle / TURN + 0.5)).to(tl.float32)
    tl.store(table + row, tl.cos(angle), mask=mask)
    tl.store(table + rows + row, tl.sin(angle), mask=mask)


@triton.jit
def make_tables(upper, lower, phase, lengths, tables, positions, heads, rows, share, upper_batch, upper_head,
                upper_row, upper_part, lower_batch, lower_head, lower_row, lower_part, phase_batch, phase_head,
                phase_row, TILE: tl.constexpr, TABLES: tl.constexpr):  # fmt: skip
    """`tables` (B, H, tables, rows) of chunks.py, for the rows of a share; see phases.py for the formulas.

    Rotations behind the last valid row are by zero, and so are the phases there.
    """
    pair, piece = tl.program_id(0), tl.program_id(1)
    sample, head = (pair // heads).to(tl.int64), pair % heads
    upper += sample * upper_batch + head * upper_head
    lower += sample * lower_batch + head * lower_head
    phase += sample * phase_batch + head * phase_head
    tables += pair.to(tl.int64) * TABLES * rows
    rotations = length_of(lengths, sample, positions) - 1
    line = tl.arange(0, TILE)
    begin, end = piece * share, tl.minimum((piece + 1) * share, rows)

    # What the rotations behind this share's collect.
    of_upper, of_lower = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for base in range(end, rotations, TILE):
        valid = base + line < rotations
        of_upper += _load(upper, base + line, upper_row, 1, upper_part, valid)
        of_lower += _load(lower, base + line, lower_row, 1, lower_part, valid)
    behind_upper, behind_lower = tl.sum(of_upper, 0), tl.sum(of_lower, 0)
    tiles = tl.cdiv(end - begin, TILE)
    for number in range(tiles):
        row = begin + (tiles - 1 - number) * TILE + line
        mask, rotates = row < end, (row < end) & (row < rotations)
        before = (row > 0) & (row < end) & (row <= rotations)
        by_upper = _load(upper, row, upper_row, 1, upper_part, rotates)
        by_lower = _load(lower, row, lower_row, 1, lower_part, rotates)
        collected_upper = tl.cumsum(by_upper, 0, reverse=True) + behind_upper
        collected_lower = tl.cumsum(by_lower, 0, reverse=True) + behind_lower
        behind_upper += tl.sum(by_upper, 0)
        behind_lower += tl.sum(by_lower, 0)
        _store_turn(tables, rows, row, mask, _load(upper, row, upper_row, 2, upper_part, rotates))
        _store_turn(tables + 2 * rows, rows, row, mask, -_load(lower, row, lower_row, 2, lower_part, rotates))
        first = -_load(upper, row, upper_row, 0, upper_part, rotates) - collected_upper
        _store_turn(tables + 4 * rows, rows, row, mask, first)
        between = _load(upper, row - 1, upper_row, 0, upper_part, before)
        between += _load(lower, row - 1, lower_row, 0, lower_part, before)
        _store_turn(tables + 6 * rows, rows, row, mask, between + collected_upper - collected_lower)
        own = tl.load(phase + row.to(tl.int64) * phase_row, mask=mask & (row <= rotations), other=0.0)
        _store_turn(tables + 8 * rows, rows, row, mask, _double(own))


@triton.jit
def _summed(sums, angle, row, rows, size, valid, BLOCKS: tl.constexpr):
    """Sums (rows) of an angle over the blocks of channels."""
    total = tl.load(sums + angle * rows + row, mask=valid, other=0.0)
    for block in tl.static_range(1, BLOCKS):
        total += tl.load(sums + block * size + angle * rows + row, mask=valid, other=0.0)
    return total.to(tl.float64)


@triton.jit
def _store(of_angles, row, a, b, c, valid):
    to = of_angles + row.to(tl.int64) * 3
    tl.store(to, a.to(tl.float32).to(of_angles.dtype.element_ty), mask=valid)
    tl.store(to + 1, b.to(tl.float32).to(of_angles.dtype.element_ty), mask=valid)
    tl.store(to + 2, c.to(tl.float32).to(of_angles.dtype.element_ty), mask=valid)


@triton.jit
def angle_gradients(sums, lengths, of_upper, of_lower, of_phase, heads, positions, rows, share, BLOCKS: tl.constexpr,
                    TILE: tl.constexpr, ANGLES: tl.constexpr):  # fmt: skip
    """Gradients (B, H, N - 1, 3) and (B, H, N), contiguous, of a share's rows; zero where nothing is valid."""
    pair, piece = tl.program_id(0), tl.program_id(1)
    size = tl.num_programs(0).to(tl.int64) * ANGLES * rows
    sums += pair.to(tl.int64) * ANGLES * rows
    of_upper += pair.to(tl.int64) * (positions - 1) * 3
    of_lower += pair.to(tl.int64) * (positions - 1) * 3
    of_phase += pair.to(tl.int64) * positions
    count = length_of(lengths, pair // heads, positions)
    line = tl.arange(0, TILE)
    begin, end = piece * share, tl.minimum((piece + 1) * share, positions)

    by_first, by_between = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for base in range(0, tl.minimum(begin, count), TILE):
        valid = (base + line < begin) & (base + line < count)
        by_first += _summed(sums, 2, base + line, rows, size, valid, BLOCKS)
        by_between += _summed(sums, 3, base + line, rows, size, valid, BLOCKS)
    before_first, before_between = tl.sum(by_first, 0), tl.sum(by_between, 0)
    for number in range(tl.cdiv(end - begin, TILE)):
        row = begin + number * TILE + line
        inside, valid = row < end, (row < end) & (row < count)
        rotates = valid & (row < count - 1)
        first = _summed(sums, 2, row, rows, size, valid, BLOCKS)
        between = _summed(sums, 3, row, rows, size, valid, BLOCKS)
        sum_first, sum_between = tl.cumsum(first, 0) + before_first, tl.cumsum(between, 0) + before_between
        before_first += tl.sum(first, 0)
        before_between += tl.sum(between, 0)
        following = _summed(sums, 3, row + 1, rows, size, rotates, BLOCKS)
        a, b = tl.where(rotates, following - first, 0.0), tl.where(rotates, sum_between - sum_first, 0.0)
        there = inside & (row < positions - 1)
        _store(of_upper, row, a, b, _summed(sums, 0, row, rows, size, rotates, BLOCKS), there)
        b = tl.where(rotates, -sum_between, 0.0)
        _store(of_lower, row, following, b, -_summed(sums, 1, row, rows, size, rotates, BLOCKS), there)
        own = _summed(sums, 4, row, rows, size, valid, BLOCKS)
        tl.store(of_phase + row, own.to(tl.float32).to(of_phase.dtype.element_ty), mask=inside)
