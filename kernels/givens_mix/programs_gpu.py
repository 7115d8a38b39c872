"""Triton programs of Phi^-1 exp(i phase) Phi for one order: each chunk of rows goes through all four sweeps at once.

With O_u and O_l the products of the real rotations of H_u and H_l^-1 (phases.py), the stages are: rows turned, swept by
O_u from the last to the first, turned, swept by O_l^T from the first to the last, turned by the eigenvalues' phases,
and then back through O_l and O_u^T. A sweep hands on one row from chunk to chunk. What a chunk hands on is linear in
its rows and in what is handed in. So there are three launches: `find_terms` has what every chunk hands on if nothing is
handed in, `find_inflows` goes over the chunks for what is handed in indeed, and `mix_chunks` has all results.

A sweep of O takes rows k of a chunk to rows k + 1, that of its transpose takes them back: no chunk reads a row of
another. The last valid row has a rotation by zero behind it, as have all that are not valid.
"""

import triton
import triton.language as tl

from ..common.lengths_gpu import length_of
from .chunk_parts_gpu import (
    ascend,
    by_rotation,
    cross,
    descend,
    inflow,
    place,
    read,
    rotations,
    turn,
    weigh,
    write,
)


@triton.jit
def find_terms(value, tables, terms, couplings, lengths, sign, positions, heads, width, rows, head_stride,
               channel_stride, part, COUPLED: tl.constexpr, CHUNK: tl.constexpr, CHANNELS: tl.constexpr,
               TABLES: tl.constexpr, INFLOWS: tl.constexpr, COUPLINGS: tl.constexpr,
               HALVES: tl.constexpr):  # fmt: skip
    """What each chunk hands on in the four sweeps if nothing is handed in; `sign` is that of the eigenvalues' phases.

    These are sums of its rows by complex weights, alike for all channels: the last one's go back through the sweeps
    before it, and the others' join it on the way.

    COUPLED: and its couplings, complex numbers but the first two: minus what it makes of an inflow of the same sweep,
    for O_u and for O_l; what it makes in the second sweep of an inflow of the first; in the third of one of the second,
    and of the first; in the fourth of one of the second, and of the first.
    """
    pair, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    line = tl.arange(0, CHUNK)
    at = tables + pair.to(tl.int64) * TABLES * rows + chunk * CHUNK
    cosine_u, sine_u, products_u, behind_u, before_u = rotations(at, at + rows, line, CHUNK)
    cosine_l, sine_l, products_l, behind_l, before_l = rotations(at + 2 * rows, at + 3 * rows, line, CHUNK)
    first_cosine, first_sine = tl.load(at + 4 * rows + line)[:, None], tl.load(at + 5 * rows + line)[:, None]
    turn_cosine, turn_sine = tl.load(at + 6 * rows + line + 1), tl.load(at + 7 * rows + line + 1)
    own_cosine, own_sine = tl.load(at + 8 * rows + line), sign * tl.load(at + 9 * rows + line)
    # By these a sweep of O hands on rows and reads what is handed in, and one of its transpose the other way round.
    up_u, down_u, up_l, down_l = before_u * cosine_u, behind_u * cosine_u, before_l * cosine_l, behind_l * cosine_l

    sweep = tl.arange(0, CHUNK)[None, :]  # of which the weights are; there are four
    real = tl.where(sweep == 3, (down_u * turn_cosine)[:, None], 0.0)
    imaginary = tl.where(sweep == 3, -(down_u * turn_sine)[:, None], 0.0)
    real = ascend(real, 0.0, cosine_l, sine_l, products_l, before_l)[0]
    imaginary = ascend(imaginary, 0.0, cosine_l, sine_l, products_l, before_l)[0]
    real = tl.where(sweep == 2, up_l[:, None], real)
    real, imaginary = turn(real, imaginary, own_cosine[:, None], own_sine[:, None])
    real = descend(real, 0.0, cosine_l, sine_l, products_l, behind_l)[1]
    imaginary = descend(imaginary, 0.0, cosine_l, sine_l, products_l, behind_l)[1]
    real = tl.where(sweep == 1, down_l[:, None], real)
    real, imaginary = turn(real, imaginary, turn_cosine[:, None], turn_sine[:, None])
    real = ascend(real, 0.0, cosine_u, sine_u, products_u, before_u)[0]
    imaginary = ascend(imaginary, 0.0, cosine_u, sine_u, products_u, before_u)[0]
    real = tl.where(sweep == 0, up_u[:, None], real)
    real, imaginary = turn(real, imaginary, first_cosine, first_sine)
    real, imaginary = tl.trans(real), tl.trans(imaginary)

    count = length_of(lengths, pair // heads, positions)
    for block in range(tl.cdiv(width, CHANNELS)):
        _, _, row, channel, offsets = place(
            pair, chunk, block, positions, heads, width, rows, head_stride, channel_stride, CHUNK, CHANNELS, TABLES
        )
        x_real, x_imaginary = read(value, offsets, part, (row < count)[:, None] & (channel < width)[None, :])
        sum_real = weigh(real, x_real, HALVES) - weigh(imaginary, x_imaginary, HALVES)
        sum_imaginary = weigh(real, x_imaginary, HALVES) + weigh(imaginary, x_real, HALVES)
        to = terms + (((pair.to(tl.int64) * INFLOWS + line[:, None]) * chunks + chunk) * width + channel[None, :]) * 2
        mask = (line < INFLOWS)[:, None] & (channel < width)[None, :]
        tl.store(to, sum_real, mask=mask)
        tl.store(to + 1, sum_imaginary, mask=mask)

    if COUPLED:
        _keep_couplings(
            couplings + pair.to(tl.int64) * COUPLINGS * chunks + chunk, chunks, line, up_l, down_l, down_u,
            behind_u * sine_u, behind_l * sine_l, products_l, cosine_l, sine_l, turn_cosine, turn_sine, own_cosine,
            own_sine,
        )  # fmt: skip


@triton.jit
def _keep_couplings(to, chunks, line, up_l, down_l, down_u, passed_u, passed_l, products_l, cosine_l, sine_l,
                    turn_cosine, turn_sine, own_cosine, own_sine):  # fmt: skip
    """Keep a chunk's couplings; see `find_terms`."""
    top = line == 0
    tl.store(to, tl.sum(tl.where(top, passed_u, 0.0), 0))
    tl.store(to + chunks, tl.sum(tl.where(top, passed_l, 0.0), 0))
    # What an inflow of one is after the first sweep, and after the second.
    turned_real, turned_imaginary = turn_cosine * down_u, turn_sine * down_u
    tl.store(to + 2 * chunks, tl.sum(down_l * turned_real, 0))
    tl.store(to + 3 * chunks, tl.sum(down_l * turned_imaginary, 0))
    got_real = tl.sum(products_l * (cosine_l * turned_real)[:, None], 0)
    got_imaginary = tl.sum(products_l * (cosine_l * turned_imaginary)[:, None], 0)
    after_real = cosine_l * got_real + sine_l * turned_real
    after_imaginary = cosine_l * got_imaginary + sine_l * turned_imaginary
    tl.store(to + 4 * chunks, tl.sum(up_l * up_l * own_cosine, 0))
    tl.store(to + 5 * chunks, tl.sum(up_l * up_l * own_sine, 0))
    by_real, by_imaginary = turn(after_real, after_imaginary, own_cosine, own_sine)
    tl.store(to + 6 * chunks, tl.sum(up_l * by_real, 0))
    tl.store(to + 7 * chunks, tl.sum(up_l * by_imaginary, 0))
    by_real, by_imaginary = turn(after_real, -after_imaginary, own_cosine, own_sine)
    tl.store(to + 8 * chunks, tl.sum(up_l * by_real, 0))
    tl.store(to + 9 * chunks, tl.sum(up_l * by_imaginary, 0))
    square = after_real * after_real + after_imaginary * after_imaginary
    tl.store(to + 10 * chunks, tl.sum(square * own_cosine, 0))
    tl.store(to + 11 * chunks, tl.sum(square * own_sine, 0))


@triton.jit
def _plus(real, imaginary, couplings, at, chunks, number, sign, valid, x_real, x_imaginary):
    """Add a coupling, or its conjugate where `sign` is -1, times what is handed in."""
    cosine = tl.load(couplings + number * chunks + at, mask=valid, other=0.0)[:, None]
    sine = sign * tl.load(couplings + (number + 1) * chunks + at, mask=valid, other=0.0)[:, None]
    more_real, more_imaginary = turn(x_real, x_imaginary, cosine, sine)
    return real + more_real, imaginary + more_imaginary


@triton.jit
def _rows(carries, pair, at, chunks, number, channel, width, INFLOWS: tl.constexpr):
    """Offsets (rows, channels) of the real parts of the carries `number` of several chunks."""
    start = (pair.to(tl.int64) * INFLOWS + number) * chunks
    return carries + ((start + at[:, None]) * width + channel[None, :]) * 2


@triton.jit
def _pair(rows, mask):
    return tl.load(rows, mask=mask, other=0.0), tl.load(rows + 1, mask=mask, other=0.0)


@triton.jit
def _then(passed, real, imaginary, passes, next_real, next_imaginary):
    """What two runs of chunks make of what is handed in: a part of it that passes, and what they add."""
    return passed * passes, next_real + passes * real, next_imaginary + passes * imaginary


@triton.jit
def _sweep_chunks(terms, inflows, couplings, pair, chunks, channel, width, carry_real, carry_imaginary,
                  SWEEP: tl.constexpr, CONJUGATE: tl.constexpr, ROWS: tl.constexpr, INFLOWS: tl.constexpr):  # fmt: skip
    """Keep what one of the four sweeps hands into each chunk, `carry` into the first one; the row that it ends with."""
    line = tl.arange(0, ROWS)
    blocks = tl.cdiv(chunks, ROWS)
    ASCENDING: tl.constexpr = SWEEP % 2 == 1
    # Couplings of the first sweep with the third and of the second with the fourth change places in the conjugate.
    OF_FIRST: tl.constexpr = 10 if SWEEP == 3 else (8 if CONJUGATE else 6)
    OF_SECOND: tl.constexpr = 4 if SWEEP == 2 else (6 if CONJUGATE else 8)
    sign = -1.0 if CONJUGATE else 1.0
    passed = couplings + (0 if SWEEP == 0 or SWEEP == 3 else chunks)
    begins = line * 0 + (0 if ASCENDING else chunks - 1)
    to = _rows(inflows, pair, begins, chunks, SWEEP, channel, width, INFLOWS)
    mask = (line == 0)[:, None] & (channel < width)[None, :]
    zeros = tl.zeros([ROWS, channel.shape[0]], tl.float32)
    tl.store(to, carry_real + zeros, mask=mask)
    tl.store(to + 1, carry_imaginary + zeros, mask=mask)
    for step in range(blocks):
        at = (step if ASCENDING else blocks - 1 - step) * ROWS + line
        valid = at < chunks
        mask = valid[:, None] & (channel < width)[None, :]
        real, imaginary = _pair(_rows(terms, pair, at, chunks, SWEEP, channel, width, INFLOWS), mask)
        if SWEEP > 0:
            x_real, x_imaginary = _pair(_rows(inflows, pair, at, chunks, 0, channel, width, INFLOWS), mask)
            if SWEEP == 1:
                real, imaginary = _plus(real, imaginary, couplings, at, chunks, 2, 1.0, valid, x_real, x_imaginary)
        if SWEEP > 1:
            real, imaginary = _plus(real, imaginary, couplings, at, chunks, OF_FIRST, sign, valid, x_real, x_imaginary)
            x_real, x_imaginary = _pair(_rows(inflows, pair, at, chunks, 1, channel, width, INFLOWS), mask)
            real, imaginary = _plus(real, imaginary, couplings, at, chunks, OF_SECOND, sign, valid, x_real, x_imaginary)
        if SWEEP == 3:
            x_real, x_imaginary = _pair(_rows(inflows, pair, at, chunks, 2, channel, width, INFLOWS), mask)
            real, imaginary = _plus(real, imaginary, couplings, at, chunks, 2, -1.0, valid, x_real, x_imaginary)
        # What is no chunk hands on what it gets.
        passes = -tl.load(passed + at, mask=valid, other=-1.0)[:, None] + zeros
        passes, real, imaginary = tl.associative_scan((passes, real, imaginary), 0, _then, reverse=not ASCENDING)
        real, imaginary = real + passes * carry_real, imaginary + passes * carry_imaginary
        # A chunk hands it to the next one.
        next_one = at + (1 if ASCENDING else -1)
        to = _rows(inflows, pair, next_one, chunks, SWEEP, channel, width, INFLOWS)
        mask = (valid & (next_one >= 0) & (next_one < chunks))[:, None] & (channel < width)[None, :]
        tl.store(to, real, mask=mask)
        tl.store(to + 1, imaginary, mask=mask)
        leaves = (line == (ROWS - 1 if ASCENDING else 0))[:, None]
        carry_real = tl.sum(tl.where(leaves, real, 0.0), 0)[None, :]
        carry_imaginary = tl.sum(tl.where(leaves, imaginary, 0.0), 0)[None, :]
    tl.debug_barrier()  # the next sweep reads what other threads wrote
    return carry_real, carry_imaginary


@triton.jit
def find_inflows(terms, inflows, couplings, tables, chunks, width, rows, CONJUGATE: tl.constexpr, ROWS: tl.constexpr,
         CHANNELS: tl.constexpr, TABLES: tl.constexpr, INFLOWS: tl.constexpr, COUPLINGS: tl.constexpr):  # fmt: skip
    """What is handed into each chunk, from `terms` and couplings; CONJUGATE: for eigenvalues of the opposite phases.

    The sweeps follow each other, each one over blocks of chunks, of all of which a scan finds at once what they hand
    on. A sweep from before gets in front of the first row what the one from behind hands on there, turned.
    """
    pair, block = tl.program_id(0), tl.program_id(1)
    couplings += pair.to(tl.int64) * COUPLINGS * chunks
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    first = tables + (pair.to(tl.int64) * TABLES + 6) * rows
    cosine, sine = tl.load(first), tl.load(first + rows)
    zeros = tl.zeros([1, CHANNELS], tl.float32)
    real, imaginary = _sweep_chunks(
        terms, inflows, couplings, pair, chunks, channel, width, zeros, zeros, 0, CONJUGATE, ROWS, INFLOWS
    )
    real, imaginary = turn(real, imaginary, cosine, sine)
    _sweep_chunks(terms, inflows, couplings, pair, chunks, channel, width, real, imaginary, 1, CONJUGATE, ROWS, INFLOWS)
    real, imaginary = _sweep_chunks(
        terms, inflows, couplings, pair, chunks, channel, width, zeros, zeros, 2, CONJUGATE, ROWS, INFLOWS
    )
    real, imaginary = turn(real, imaginary, cosine, -sine)
    _sweep_chunks(terms, inflows, couplings, pair, chunks, channel, width, real, imaginary, 3, CONJUGATE, ROWS, INFLOWS)


@triton.jit
def mix_chunks(value, result, tables, inflows, lengths, positions, heads, width, rows, head_stride, channel_stride,
               part, WITHOUT_OWN: tl.constexpr, CHUNK: tl.constexpr, CHANNELS: tl.constexpr, TABLES: tl.constexpr,
               INFLOWS: tl.constexpr):  # fmt: skip
    """The result's rows of a chunk; WITHOUT_OWN: minus exp(i phase) value."""
    pair, chunk, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    chunks = tl.num_programs(1)
    table, line, row, channel, offsets = place(
        pair, chunk, block, positions, heads, width, rows, head_stride, channel_stride, CHUNK, CHANNELS, TABLES
    )
    count = length_of(lengths, pair // heads, positions)
    inside = (channel < width)[None, :]
    real, imaginary = read(value, offsets, part, (row < count)[:, None] & inside)
    at = tables + table
    cosine_u, sine_u, products_u, behind_u, before_u = rotations(at, at + rows, line, CHUNK)
    cosine_l, sine_l, products_l, behind_l, before_l = rotations(at + 2 * rows, at + 3 * rows, line, CHUNK)
    first_cosine, first_sine = tl.load(at + 4 * rows + line)[:, None], tl.load(at + 5 * rows + line)[:, None]
    turn_cosine, turn_sine = tl.load(at + 6 * rows + line + 1)[:, None], tl.load(at + 7 * rows + line + 1)[:, None]
    own_cosine, own_sine = tl.load(at + 8 * rows + line)[:, None], tl.load(at + 9 * rows + line)[:, None]
    own_real, own_imaginary = turn(real, imaginary, own_cosine, own_sine)

    real, imaginary = turn(real, imaginary, first_cosine, first_sine)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 0, channel, width, INFLOWS)
    real = descend(real, in_real, cosine_u, sine_u, products_u, behind_u)[1]
    imaginary = descend(imaginary, in_imaginary, cosine_u, sine_u, products_u, behind_u)[1]
    real, imaginary = turn(real, imaginary, turn_cosine, turn_sine)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 1, channel, width, INFLOWS)
    real = ascend(real, in_real, cosine_l, sine_l, products_l, before_l)[0]
    imaginary = ascend(imaginary, in_imaginary, cosine_l, sine_l, products_l, before_l)[0]
    real, imaginary = turn(real, imaginary, own_cosine, own_sine)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 2, channel, width, INFLOWS)
    real = descend(real, in_real, cosine_l, sine_l, products_l, behind_l)[1]
    imaginary = descend(imaginary, in_imaginary, cosine_l, sine_l, products_l, behind_l)[1]
    real, imaginary = turn(real, imaginary, turn_cosine, -turn_sine)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 3, channel, width, INFLOWS)
    real = ascend(real, in_real, cosine_u, sine_u, products_u, before_u)[0]
    imaginary = ascend(imaginary, in_imaginary, cosine_u, sine_u, products_u, before_u)[0]
    real, imaginary = turn(real, imaginary, first_cosine, -first_sine)
    if WITHOUT_OWN:
        real, imaginary = real - own_real, imaginary - own_imaginary
    write(result, offsets, part, (row < positions)[:, None] & inside, real, imaginary)


@triton.jit
def unmix_chunks(value, gradient, of_value, sums, tables, inflows, of_inflows, lengths, positions, heads, width, rows,
                 head_stride, channel_stride, part, WITHOUT_OWN: tl.constexpr, CHUNK: tl.constexpr,
                 CHANNELS: tl.constexpr, TABLES: tl.constexpr, INFLOWS: tl.constexpr,
                 ANGLES: tl.constexpr):  # fmt: skip
    """The value's gradient, and `sums` (blocks, B, H, angles, rows) over the channels of a block for the angles.

    The adjoint has eigenvalues of the opposite phases and is the same otherwise. So the value goes through Phi and then
    back, and the gradient goes through Phi and then, as the gradient of the value, back; each half has the states for
    which the other one of the other has the gradients.
    """
    pair, chunk, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    chunks = tl.num_programs(1)
    table, line, row, channel, offsets = place(
        pair, chunk, block, positions, heads, width, rows, head_stride, channel_stride, CHUNK, CHANNELS, TABLES
    )
    count = length_of(lengths, pair // heads, positions)
    inside = (channel < width)[None, :]
    valid = (row < count)[:, None] & inside
    at = tables + table
    cosine_u, sine_u, products_u, behind_u, before_u = rotations(at, at + rows, line, CHUNK)
    cosine_l, sine_l, products_l, behind_l, before_l = rotations(at + 2 * rows, at + 3 * rows, line, CHUNK)
    first_cosine, first_sine = tl.load(at + 4 * rows + line)[:, None], tl.load(at + 5 * rows + line)[:, None]
    turn_cosine, turn_sine = tl.load(at + 6 * rows + line + 1)[:, None], tl.load(at + 7 * rows + line + 1)[:, None]
    own_cosine, own_sine = tl.load(at + 8 * rows + line)[:, None], tl.load(at + 9 * rows + line)[:, None]
    size = tl.num_programs(0).to(tl.int64) * ANGLES * rows
    sums += block * size + pair.to(tl.int64) * ANGLES * rows + chunk * CHUNK
    to = sums + line

    # Both through Phi.
    real, imaginary = read(value, offsets, part, valid)
    x0_real, x0_imaginary = turn(real, imaginary, first_cosine, first_sine)
    real, imaginary = read(gradient, offsets, part, valid)
    g0_real, g0_imaginary = turn(real, imaginary, first_cosine, first_sine)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 0, channel, width, INFLOWS)
    x_got_real, real = descend(x0_real, in_real, cosine_u, sine_u, products_u, behind_u)
    x_got_imaginary, imaginary = descend(x0_imaginary, in_imaginary, cosine_u, sine_u, products_u, behind_u)
    x1_real, x1_imaginary = turn(real, imaginary, turn_cosine, turn_sine)
    in_real, in_imaginary = inflow(of_inflows, pair, chunk, chunks, 0, channel, width, INFLOWS)
    g_got_real, real = descend(g0_real, in_real, cosine_u, sine_u, products_u, behind_u)
    g_got_imaginary, imaginary = descend(g0_imaginary, in_imaginary, cosine_u, sine_u, products_u, behind_u)
    g1_real, g1_imaginary = turn(real, imaginary, turn_cosine, turn_sine)
    x_in_real, x_in_imaginary = inflow(inflows, pair, chunk, chunks, 1, channel, width, INFLOWS)
    x2_real, x_on_real = ascend(x1_real, x_in_real, cosine_l, sine_l, products_l, before_l)
    x2_imaginary, x_on_imaginary = ascend(x1_imaginary, x_in_imaginary, cosine_l, sine_l, products_l, before_l)
    g_in_real, g_in_imaginary = inflow(of_inflows, pair, chunk, chunks, 1, channel, width, INFLOWS)
    g2_real, g_on_real = ascend(g1_real, g_in_real, cosine_l, sine_l, products_l, before_l)
    g2_imaginary, g_on_imaginary = ascend(g1_imaginary, g_in_imaginary, cosine_l, sine_l, products_l, before_l)

    # The eigenvalues, and both back.
    w_real, w_imaginary = turn(x2_real, x2_imaginary, own_cosine, own_sine)
    v_real, v_imaginary = turn(g2_real, g2_imaginary, own_cosine, -own_sine)
    by_own = cross(w_real, w_imaginary, g2_real, g2_imaginary)
    in_real, in_imaginary = inflow(inflows, pair, chunk, chunks, 2, channel, width, INFLOWS)
    w_got_real, real = descend(w_real, in_real, cosine_l, sine_l, products_l, behind_l)
    w_got_imaginary, imaginary = descend(w_imaginary, in_imaginary, cosine_l, sine_l, products_l, behind_l)
    by_lower = by_rotation(w_real, w_got_real, g2_real, g_on_real)
    by_lower += by_rotation(w_imaginary, w_got_imaginary, g2_imaginary, g_on_imaginary)
    by_turn = cross(g1_real, g1_imaginary, real, imaginary)
    w_real, w_imaginary = turn(real, imaginary, turn_cosine, -turn_sine)
    in_real, in_imaginary = inflow(of_inflows, pair, chunk, chunks, 2, channel, width, INFLOWS)
    v_got_real, real = descend(v_real, in_real, cosine_l, sine_l, products_l, behind_l)
    v_got_imaginary, imaginary = descend(v_imaginary, in_imaginary, cosine_l, sine_l, products_l, behind_l)
    by_lower += by_rotation(v_real, v_got_real, x2_real, x_on_real)
    by_lower += by_rotation(v_imaginary, v_got_imaginary, x2_imaginary, x_on_imaginary)
    by_turn += cross(x1_real, x1_imaginary, real, imaginary)
    v_real, v_imaginary = turn(real, imaginary, turn_cosine, -turn_sine)
    w_in_real, w_in_imaginary = inflow(inflows, pair, chunk, chunks, 3, channel, width, INFLOWS)
    real, on_real = ascend(w_real, w_in_real, cosine_u, sine_u, products_u, before_u)
    imaginary, on_imaginary = ascend(w_imaginary, w_in_imaginary, cosine_u, sine_u, products_u, before_u)
    by_upper = by_rotation(g0_real, g_got_real, real, on_real)
    by_upper += by_rotation(g0_imaginary, g_got_imaginary, imaginary, on_imaginary)
    by_first = cross(g0_real, g0_imaginary, real, imaginary)
    v_in_real, v_in_imaginary = inflow(of_inflows, pair, chunk, chunks, 3, channel, width, INFLOWS)
    real, on_real = ascend(v_real, v_in_real, cosine_u, sine_u, products_u, before_u)
    imaginary, on_imaginary = ascend(v_imaginary, v_in_imaginary, cosine_u, sine_u, products_u, before_u)
    by_upper += by_rotation(x0_real, x_got_real, real, on_real)
    by_upper += by_rotation(x0_imaginary, x_got_imaginary, imaginary, on_imaginary)
    by_first += cross(x0_real, x0_imaginary, real, imaginary)
    if WITHOUT_OWN:
        own_real, own_imaginary = turn(x0_real, x0_imaginary, own_cosine, own_sine)
        by_own -= cross(own_real, own_imaginary, g0_real, g0_imaginary)
        own_real, own_imaginary = turn(g0_real, g0_imaginary, own_cosine, -own_sine)
        real, imaginary = real - own_real, imaginary - own_imaginary
    real, imaginary = turn(real, imaginary, first_cosine, -first_sine)
    write(of_value, offsets, part, (row < positions)[:, None] & inside, real, imaginary)
    tl.store(to, by_upper)
    tl.store(to + rows, by_lower)
    tl.store(to + 2 * rows, by_first)
    tl.store(to + 3 * rows + 1, by_turn)
    tl.store(to + 4 * rows, by_own)
    if chunk == 0:
        # Between the sweeps the first row is no chunk's: it is what they hand on there.
        cosine, sine = tl.load(at + 6 * rows), tl.load(at + 7 * rows)
        v_in_real, v_in_imaginary = turn(v_in_real, v_in_imaginary, cosine, sine)
        w_in_real, w_in_imaginary = turn(w_in_real, w_in_imaginary, cosine, sine)
        by_end = cross(x_in_real, x_in_imaginary, v_in_real, v_in_imaginary)
        by_end += cross(g_in_real, g_in_imaginary, w_in_real, w_in_imaginary)
        tl.store(sums + 3 * rows, tl.sum(by_end, 0))
