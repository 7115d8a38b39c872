"""Triton programs between what a linear head has drawn and the angles and phases of the rotations of one order."""

import triton
import triton.language as tl

# Of a token in a head: u_0, and A, B and C of H_l's rotation and of H_u's.
DRAWN = tl.constexpr(7)


@triton.jit
def _tokens(positions, heads, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """The tokens (HEADS, ROWS) of a program: rows, heads, which there are, and places in (B, N, H) and (B, H, N)."""
    sample = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[None, :]
    head = (tl.program_id(2) * HEADS + tl.arange(0, HEADS))[:, None]
    inside = (row < positions) & (head < heads)
    return row, head, inside, (sample * positions + row) * heads + head, (sample * heads + head) * positions + row


@triton.jit
def _begins(begins, row, positions):
    """Whether a document begins on the rows (1, ROWS) of this program's sample; none does past the end."""
    begin = row < 0
    if begins is not None:
        at = tl.program_id(0).to(tl.int64) * positions + row
        begin = tl.load(begins + at, mask=row < positions, other=0) != 0
    return begin


@triton.jit
def _affine(drawn, centres, ranges, token, head, heads, part, inside):
    """Centre + range * drawn of one of the numbers of each token."""
    own = head * DRAWN + part
    centre = tl.load(centres + own, mask=head < heads, other=0.0)
    scale = tl.load(ranges + own, mask=head < heads, other=0.0)
    return centre + scale * tl.load(drawn + token * DRAWN + part, mask=inside, other=0.0).to(scale.dtype)


@triton.jit
def make_angles(drawn, coefficients, centres, ranges, begins, upper, lower, phase, turns, positions, heads, count,
                ROWS: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    """upper and lower (B, H, N - 1, 3), phase and turns u_0 (B, H, N), of drawn (B, N, H, 7)."""
    row, head, inside, token, place = _tokens(positions, heads, ROWS, HEADS)
    turn = _affine(drawn, centres, ranges, token, head, heads, 0, inside)
    tl.store(turns + place, turn, mask=inside)
    eigenvalue = tl.sin(turn)
    result = eigenvalue
    if coefficients is not None:
        own = coefficients + head * count
        result = tl.load(own, mask=head < heads, other=0.0).to(turn.dtype)
        result += tl.load(own + 1, mask=head < heads, other=0.0).to(turn.dtype) * eigenvalue
        before, term = turn * 0 + 1, eigenvalue
        for k in range(2, count):
            following = 2 * eigenvalue * term - before
            before, term = term, following
            result += tl.load(own + k, mask=head < heads, other=0.0).to(turn.dtype) * term
    tl.store(phase + place, result, mask=inside)

    # Of the token's own place among N - 1 rotations that of H_l, of the one before that of H_u.
    rotation = place - (place // positions)
    with_next, with_last = inside & (row < positions - 1), inside & (row > 0)
    apart, apart_before = _begins(begins, row + 1, positions), _begins(begins, row, positions)
    for part in tl.static_range(3):
        own = _affine(drawn, centres, ranges, token, head, heads, 1 + part, inside)
        tl.store(lower + rotation * 3 + part, tl.where(apart, 0.0, own), mask=with_next)
        own = _affine(drawn, centres, ranges, token, head, heads, 4 + part, inside)
        tl.store(upper + (rotation - 1) * 3 + part, tl.where(apart_before, 0.0, own), mask=with_last)


@triton.jit
def of_angles(of_upper, of_lower, of_phase, turns, coefficients, ranges, begins, of_drawn, parts, positions, heads,
              count, ROWS: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    """Gradients of drawn (B, N, H, 7), and of the coefficients in parts (B blocks, H, count), one for each program's
    rows.
    """
    row, head, inside, token, place = _tokens(positions, heads, ROWS, HEADS)
    known = head < heads
    turn = tl.load(turns + place, mask=inside, other=0.0)
    gradient = tl.load(of_phase + place, mask=inside, other=0.0).to(turn.dtype)
    if coefficients is not None:
        eigenvalue = tl.sin(turn)
        own = coefficients + head * count
        block = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        part = parts + (block * heads + head) * count
        tl.store(part, tl.sum(gradient, 1)[:, None], mask=known)
        tl.store(part + 1, tl.sum(gradient * eigenvalue, 1)[:, None], mask=known)
        # T_k' = k U_{k-1}, of which U_0 is one and U_1 is 2 x.
        before, term, slope_before, slope = turn * 0 + 1, eigenvalue, turn * 0, turn * 0 + 1
        total = slope * tl.load(own + 1, mask=known, other=0.0).to(turn.dtype)
        for k in range(2, count):
            following, next_slope = 2 * eigenvalue * term - before, 2 * eigenvalue * slope - slope_before
            before, term, slope_before, slope = term, following, slope, next_slope
            tl.store(part + k, tl.sum(gradient * term, 1)[:, None], mask=known)
            total += k * tl.load(own + k, mask=known, other=0.0).to(turn.dtype) * slope
        gradient *= total
    scale = tl.load(ranges + head * DRAWN, mask=known, other=0.0)
    tl.store(of_drawn + token * DRAWN, gradient * tl.cos(turn) * scale, mask=inside)

    rotation = place - (place // positions)
    with_next = inside & (row < positions - 1) & ~_begins(begins, row + 1, positions)
    with_last = inside & (row > 0) & ~_begins(begins, row, positions)
    for part in tl.static_range(3):
        scale = tl.load(ranges + head * DRAWN + 1 + part, mask=known, other=0.0)
        found = tl.load(of_lower + rotation * 3 + part, mask=with_next, other=0.0)
        tl.store(of_drawn + token * DRAWN + 1 + part, found * scale, mask=inside)
        scale = tl.load(ranges + head * DRAWN + 4 + part, mask=known, other=0.0)
        found = tl.load(of_upper + (rotation - 1) * 3 + part, mask=with_last, other=0.0)
        tl.store(of_drawn + token * DRAWN + 4 + part, found * scale, mask=inside)
