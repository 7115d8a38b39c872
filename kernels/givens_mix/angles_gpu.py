"""Triton programs that make the tables of one order from angles, and the angles' gradients from the tables' sums.

Where `ranges` are given, upper, lower and phase are one tensor (B, N, H, 7) of what a linear head has drawn: of a token
u_0, then A, B and C of its rotation of H_l, and of that of H_u which belongs to the token before (token_givens).
"""

import triton
import triton.language as tl

from ..common.lengths_gpu import length_of

# A turn in two parts: angles may be large, and phases add up over the row.
TURN = tl.constexpr(6.283185307179586)
# Of the numbers of a token in a head the first of each rotation, and how many there are.
LOWER, UPPER, DRAWN = tl.constexpr(1), tl.constexpr(4), tl.constexpr(7)


@triton.jit
def _double(x):
    """Float64, of half precision by way of fp32: Triton's interpreter cannot do it at once."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return x.to(tl.float64)


@triton.jit
def _load(angles, row, stride, part, part_stride, valid, centres, ranges, first: tl.constexpr):
    """Angles, float64; where `ranges` are given, centre + range * what was drawn of them, `first` the rotation's."""
    angle = tl.load(angles + row.to(tl.int64) * stride + part * part_stride, mask=valid, other=0.0)
    if ranges is not None:
        angle = tl.where(valid, _affine(angle, centres, ranges, first + part), 0.0)
    return _double(angle)


@triton.jit
def _affine(drawn, centres, ranges, part):
    scale = tl.load(ranges + part)
    return tl.load(centres + part) + scale * drawn.to(scale.dtype)


@triton.jit
def _rotates(begins, row, rotations, positions, sample):
    """Whether there is a rotation between a row and the next one: both are of one document."""
    rotates = row < rotations
    if begins is not None:
        begin = tl.load(begins + sample * positions + row + 1, mask=rotates & (row >= 0), other=0)
        rotates = rotates & ~(begin != 0)
    return rotates


@triton.jit
def _series(eigenvalue, coefficients, count):
    """The Chebyshev series of so many coefficients; without any, the eigenvalue itself."""
    result = eigenvalue
    if coefficients is not None:
        result = tl.load(coefficients).to(eigenvalue.dtype)
        result += tl.load(coefficients + 1).to(eigenvalue.dtype) * eigenvalue
        before, term = eigenvalue * 0 + 1, eigenvalue
        for k in range(2, count):
            following = 2 * eigenvalue * term - before
            before, term = term, following
            result += tl.load(coefficients + k).to(eigenvalue.dtype) * term
    return result


@triton.jit
def _store_turn(table, rows, row, mask, angle):
    """Keep cosines and sines of angles (float64), brought within a turn first."""
    angle = (angle - TURN * tl.floor(angle / TURN + 0.5)).to(tl.float32)
    tl.store(table + row, tl.cos(angle), mask=mask)
    tl.store(table + rows + row, tl.sin(angle), mask=mask)


@triton.jit
def make_tables(upper, lower, phase, centres, ranges, coefficients, begins, lengths, tables, turns, positions, heads,
                rows, share, count, upper_batch, upper_head, upper_row, upper_part, lower_batch, lower_head, lower_row,
                lower_part, phase_batch, phase_head, phase_row, TILE: tl.constexpr, TABLES: tl.constexpr):  # fmt: skip
    """`tables` (B, H, tables, rows) of chunks.py, for the rows of a share; see phases.py for the formulas.

    Rotations behind the last valid row are by zero, and so are the phases there. Of what was drawn `turns` (B, H, N)
    keeps u_0, zero there too; the phases are the series of their sines.
    """
    pair, piece = tl.program_id(0), tl.program_id(1)
    sample, head = (pair // heads).to(tl.int64), pair % heads
    upper += sample * upper_batch + head * upper_head
    lower += sample * lower_batch + head * lower_head
    phase += sample * phase_batch + head * phase_head
    tables += pair.to(tl.int64) * TABLES * rows
    if ranges is not None:
        centres += head * DRAWN
        ranges += head * DRAWN
        turns += pair.to(tl.int64) * positions
        upper += upper_row + UPPER  # of the next token
        lower += LOWER
    if coefficients is not None:
        coefficients += head * count
    rotations = length_of(lengths, sample, positions) - 1
    line = tl.arange(0, TILE)
    begin, end = piece * share, tl.minimum((piece + 1) * share, rows)

    # What the rotations behind this share's collect.
    of_upper, of_lower = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for base in range(end, rotations, TILE):
        valid = _rotates(begins, base + line, rotations, positions, sample)
        of_upper += _load(upper, base + line, upper_row, 1, upper_part, valid, centres, ranges, UPPER)
        of_lower += _load(lower, base + line, lower_row, 1, lower_part, valid, centres, ranges, LOWER)
    behind_upper, behind_lower = tl.sum(of_upper, 0), tl.sum(of_lower, 0)
    tiles = tl.cdiv(end - begin, TILE)
    for number in range(tiles):
        row = begin + (tiles - 1 - number) * TILE + line
        mask = row < end
        rotates = mask & _rotates(begins, row, rotations, positions, sample)
        before = mask & (row > 0) & _rotates(begins, row - 1, rotations, positions, sample)
        by_upper = _load(upper, row, upper_row, 1, upper_part, rotates, centres, ranges, UPPER)
        by_lower = _load(lower, row, lower_row, 1, lower_part, rotates, centres, ranges, LOWER)
        collected_upper = tl.cumsum(by_upper, 0, reverse=True) + behind_upper
        collected_lower = tl.cumsum(by_lower, 0, reverse=True) + behind_lower
        behind_upper += tl.sum(by_upper, 0)
        behind_lower += tl.sum(by_lower, 0)
        turn = _load(upper, row, upper_row, 2, upper_part, rotates, centres, ranges, UPPER)
        _store_turn(tables, rows, row, mask, turn)
        turn = _load(lower, row, lower_row, 2, lower_part, rotates, centres, ranges, LOWER)
        _store_turn(tables + 2 * rows, rows, row, mask, -turn)
        first = _load(upper, row, upper_row, 0, upper_part, rotates, centres, ranges, UPPER)
        _store_turn(tables + 4 * rows, rows, row, mask, -first - collected_upper)
        between = _load(upper, row - 1, upper_row, 0, upper_part, before, centres, ranges, UPPER)
        between += _load(lower, row - 1, lower_row, 0, lower_part, before, centres, ranges, LOWER)
        _store_turn(tables + 6 * rows, rows, row, mask, between + collected_upper - collected_lower)
        known = mask & (row <= rotations)
        own = tl.load(phase + row.to(tl.int64) * phase_row, mask=known, other=0.0)
        if ranges is not None:
            own = tl.where(known, _affine(own, centres, ranges, 0), 0.0)
            tl.store(turns + row, own, mask=mask & (row < positions))
            own = tl.where(known, _series(tl.sin(own), coefficients, count), 0.0)
        _store_turn(tables + 8 * rows, rows, row, mask, _double(own))


@triton.jit
def _summed(sums, angle, row, rows, size, valid, BLOCKS: tl.constexpr):
    """Sums (rows) of an angle over the blocks of channels."""
    total = tl.load(sums + angle * rows + row, mask=valid, other=0.0)
    for block in tl.static_range(1, BLOCKS):
        total += tl.load(sums + block * size + angle * rows + row, mask=valid, other=0.0)
    return total.to(tl.float64)


@triton.jit
def _store(of_angles, row, stride, a, b, c, valid, ranges, first: tl.constexpr):
    """Gradients of a rotation's angles, float64; of what was drawn of them where `ranges` are given."""
    to = of_angles + row.to(tl.int64) * stride
    a, b, c = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32)
    if ranges is not None:
        a *= tl.load(ranges + first)
        b *= tl.load(ranges + first + 1)
        c *= tl.load(ranges + first + 2)
    tl.store(to, a.to(of_angles.dtype.element_ty), mask=valid)
    tl.store(to + 1, b.to(of_angles.dtype.element_ty), mask=valid)
    tl.store(to + 2, c.to(of_angles.dtype.element_ty), mask=valid)


@triton.jit
def _series_slope(eigenvalue, coefficients, count, gradient, sums, slots, TERMS: tl.constexpr):
    """The derivative of `_series`; and `sums` (TERMS,) with the gradient's products with the polynomials added."""
    if coefficients is None:
        return eigenvalue * 0 + 1, sums
    # T_k' = k U_{k-1}, of which U_0 is one and U_1 is 2 x.
    before, term, slope_before, slope = eigenvalue * 0 + 1, eigenvalue, eigenvalue * 0, eigenvalue * 0 + 1
    total = slope * tl.load(coefficients + 1).to(eigenvalue.dtype)
    sums += tl.where(slots == 0, tl.sum(gradient, 0), 0.0)
    sums += tl.where(slots == 1, tl.sum(gradient * eigenvalue, 0), 0.0)
    for k in range(2, count):
        following, next_slope = 2 * eigenvalue * term - before, 2 * eigenvalue * slope - slope_before
        before, term, slope_before, slope = term, following, slope, next_slope
        sums += tl.where(slots == k, tl.sum(gradient * term, 0), 0.0)
        total += k * tl.load(coefficients + k).to(eigenvalue.dtype) * slope
    return total, sums


@triton.jit
def angle_gradients(sums, lengths, of_upper, of_lower, of_phase, ranges, coefficients, begins, turns, parts, heads,
                    positions, rows, share, count, upper_batch, upper_head, upper_row, lower_batch, lower_head,
                    lower_row, phase_batch, phase_head, phase_row, BLOCKS: tl.constexpr, TILE: tl.constexpr,
                    ANGLES: tl.constexpr, TERMS: tl.constexpr):  # fmt: skip
    """Gradients of a share's rows of upper, lower and phase; zero where nothing is valid.

    Of what was drawn, those of the coefficients too, in parts (shares, B, H, count); TERMS is a power of two.
    """
    pair, piece = tl.program_id(0), tl.program_id(1)
    sample, head = (pair // heads).to(tl.int64), pair % heads
    size = tl.num_programs(0).to(tl.int64) * ANGLES * rows
    sums += pair.to(tl.int64) * ANGLES * rows
    of_upper += sample * upper_batch + head * upper_head
    of_lower += sample * lower_batch + head * lower_head
    of_phase += sample * phase_batch + head * phase_head
    known = length_of(lengths, sample, positions)
    line, slots = tl.arange(0, TILE), tl.arange(0, TERMS)
    begin, end = piece * share, tl.minimum((piece + 1) * share, positions)
    if ranges is not None:
        ranges += head * DRAWN
        turns += pair.to(tl.int64) * positions
        of_lower += LOWER
        of_upper += UPPER
        if piece == 0:  # the first token has no rotation of H_u
            tl.store(of_upper + slots, 0.0, mask=slots < 3)
        of_upper += upper_row
    if coefficients is not None:
        coefficients += head * count
    of_series = tl.zeros([TERMS], tl.float32 if turns is None else turns.dtype.element_ty)

    by_first, by_between = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for base in range(0, tl.minimum(begin, known), TILE):
        valid = (base + line < begin) & (base + line < known)
        by_first += _summed(sums, 2, base + line, rows, size, valid, BLOCKS)
        by_between += _summed(sums, 3, base + line, rows, size, valid, BLOCKS)
    before_first, before_between = tl.sum(by_first, 0), tl.sum(by_between, 0)
    for number in range(tl.cdiv(end - begin, TILE)):
        row = begin + number * TILE + line
        inside, valid = row < end, (row < end) & (row < known)
        rotates = valid & _rotates(begins, row, known - 1, positions, sample)
        first = _summed(sums, 2, row, rows, size, valid, BLOCKS)
        between = _summed(sums, 3, row, rows, size, valid, BLOCKS)
        sum_first, sum_between = tl.cumsum(first, 0) + before_first, tl.cumsum(between, 0) + before_between
        before_first += tl.sum(first, 0)
        before_between += tl.sum(between, 0)
        following = _summed(sums, 3, row + 1, rows, size, rotates, BLOCKS)
        a, b = tl.where(rotates, following - first, 0.0), tl.where(rotates, sum_between - sum_first, 0.0)
        there = inside & (row < positions - 1)
        c = _summed(sums, 0, row, rows, size, rotates, BLOCKS)
        _store(of_upper, row, upper_row, a, b, c, there, ranges, UPPER)
        b = tl.where(rotates, -sum_between, 0.0)
        c = -_summed(sums, 1, row, rows, size, rotates, BLOCKS)
        if ranges is not None:  # the last token has numbers of a rotation, but none
            there = inside
        _store(of_lower, row, lower_row, following, b, c, there, ranges, LOWER)
        own = _summed(sums, 4, row, rows, size, valid, BLOCKS).to(tl.float32)
        if ranges is not None:
            turn = tl.load(turns + row, mask=inside, other=0.0)
            own = own.to(turn.dtype)
            slope, of_series = _series_slope(tl.sin(turn), coefficients, count, own, of_series, slots, TERMS)
            own = own * slope * tl.cos(turn) * tl.load(ranges)
        tl.store(of_phase + row.to(tl.int64) * phase_row, own.to(of_phase.dtype.element_ty), mask=inside)
    if coefficients is not None:
        part = parts + (piece.to(tl.int64) * tl.num_programs(0) + pair) * count
        tl.store(part + slots, of_series, mask=slots < count)
