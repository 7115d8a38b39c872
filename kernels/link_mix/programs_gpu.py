"""Triton kernels of Paramixer's factors; gpu_kernels.py says what a program has, and launches them.

A program's piece of a sample is axis 0 of the grid, its slab of channels axis 1, its sample axis 2. A slab has GROUPS
groups of WIDE channels, what a thread reads at once, and lies in memory as (GROUPS, rows, WIDE), with zeros in channels
that do not exist: a thread has a row of all groups, and threads beside each other have rows beside each other. Rows of
padding are not read: the last valid row stands for them, and zeros are written; results and gradients are zero there.
Without `starts` and `counts`, of each row's document, a sample is one document.
"""

import triton
from triton import language as tl

from ..common.exact_gpu import exact

# Numbers that no address needs as constants: one program for all of them, 1 and multiples of 16 included.
COUNTS = ["apart", "rows", "positions", "factors", "links"]
# Rows of groups that are asked for before the first of them is there: else a program waits for each.
UNROLLED = tl.constexpr(4)


@triton.jit(do_not_specialize=[*COUNTS, "slots"])
def mix_all(
    value, states, weights, steps, apart, lengths, starts, counts, result, slots, rows, positions, width, factors,
    links, WRAP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """All factors on value; without `result` all but the last, and what goes into each stays in `states`."""
    slab, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, valid, last = _piece(lengths, starts, counts, sample, rows, positions)
    size = positions.to(tl.int64) * (GROUPS * WIDE)
    states += (sample * tl.num_programs(1) + slab) * slots * size
    steps += sample * apart
    _copy(value + sample * positions * width, states, first, valid, slab, positions, width, ROWS, GROUPS, WIDE)
    tl.debug_barrier()
    if result is None:
        computed = factors - 1
    else:
        computed = factors
        result += sample * positions * width
    for factor in range(computed):
        source = states + factor % slots * size
        target = states + (factor + 1) % slots * size
        end = valid if result is None else tl.where(factor == factors - 1, last, valid)
        for block in range(first, end, ROWS):
            row = block + tl.arange(0, ROWS)
            mixed = _mixed(
                *(source, weights, steps, starts, counts, row, valid, sample, positions, factor, links),
                *(WRAP, GROUPS, WIDE),
            )
            if result is None:
                _put(target, mixed, row, end, positions, GROUPS, WIDE)
            else:
                if factor < factors - 1:
                    _put(target, mixed, row, end, positions, GROUPS, WIDE)
                else:
                    _put_result(result, mixed, row, end, slab, width, GROUPS, WIDE)
        # What a thread has written is read by others of its program.
        tl.debug_barrier()


@triton.jit(do_not_specialize=[*COUNTS, "low", "high"])
def unmix_all(
    gradient, states, weights, steps, apart, lengths, starts, counts, of_value, of_weights, low, high, rows, positions,
    width, factors, links, WRAP: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The transposed factors high - 1 to low, and this slab's part of the gradients of their weights.

    `states` has what goes into each factor, in whose place its gradient is written: a thread reads of it the rows that
    it writes there, and for rows of padding the last valid one, from which nothing follows. Behind the last factor's
    the launch of that factor puts `gradient`. The launch of the first factor writes `of_value`, others nothing there.
    """
    slab, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, valid, last = _piece(lengths, starts, counts, sample, rows, positions)
    size = positions.to(tl.int64) * (GROUPS * WIDE)
    states += (sample * tl.num_programs(1) + slab) * (factors + 1) * size
    of_value += sample * positions * width
    steps += sample * apart
    of_weights += slab.to(tl.int64) * (high - low) * links * tl.num_programs(2) * positions
    if high == factors:
        source = states + factors * size
        _copy(gradient + sample * positions * width, source, first, valid, slab, positions, width, ROWS, GROUPS, WIDE)
        tl.debug_barrier()
    for step in range(high - low):
        factor = high - 1 - step
        target = states + factor * size
        for block in range(first, last, ROWS):
            row = block + tl.arange(0, ROWS)
            unmixed = _unmixed(
                *(target + size, target, weights, of_weights, factor - low, steps, starts, counts, row),
                *(valid, last, sample, positions, factor, links, WRAP, GROUPS, WIDE),
            )
            if factor > 0:
                _put(target, unmixed, row, last, positions, GROUPS, WIDE)
            else:
                _put_result(of_value, unmixed, row, last, slab, width, GROUPS, WIDE)
        tl.debug_barrier()


# Which rows a program has, and where their links lead.


@triton.jit
def _piece(lengths, starts, counts, sample, rows, positions):
    """First row of a program, where its valid rows end, and where it ends: whole documents, or the sample."""
    first, last = positions * 0, positions
    if starts is not None:
        first = _next_document(starts, counts, sample, tl.program_id(0) * rows, positions)
        last = _next_document(starts, counts, sample, (tl.program_id(0) + 1) * rows, positions)
    valid = last
    if lengths is not None:
        valid = tl.minimum(tl.load(lengths + sample), last).to(tl.int32)
    return first, valid, last


@triton.jit
def _next_document(starts, counts, sample, row, positions):
    """The row, at or after this one, where a document begins; the sample's end if there is none."""
    place, exists = sample * positions + row, row < positions
    start = tl.load(starts + place, exists, 0)
    end = start + tl.load(counts + place, exists, 0)
    return tl.where(exists, tl.where(start == row, row, end), positions)


@triton.jit
def _document(starts, counts, row, valid, sample, positions):
    """The first row of each row's document, how many it has, at least one, and the inverse of that."""
    if starts is None:
        first, count = row * 0, tl.maximum(valid, 1)
    else:
        first = tl.load(starts + sample * positions + row)
        count = tl.load(counts + sample * positions + row)
    return first, count, 1.0 / count.to(tl.float32)


@triton.jit
def _ends(row, first, count, inverse, step, ALONE: tl.constexpr, WRAP: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Rows that are `step` away in the documents that begin at `first` and have `count` rows, which they re-enter at
    the other end, and whether they exist. TRANSPOSED: rows that are `step` away from it.
    """
    if WRAP:
        if not ALONE:
            step = _remainder(step, count, inverse)
    else:
        step = tl.minimum(tl.maximum(step, -count), count)
    other = row - step if TRANSPOSED else row + step
    there = (other >= first) & (other < first + count)
    if not WRAP or TRANSPOSED:
        other = tl.where(other < first, other + count, other)
    if not WRAP or not TRANSPOSED:
        other = tl.where(other >= first + count, other - count, other)
    return other, there


@triton.jit
def _remainder(step, count, inverse):
    """step modulo count, 0 to count - 1, where `inverse` is 1 / count in fp32, for steps of less than 2^20: a card has
    no division of integers, and a loop with the many instructions that stand for one is slow."""
    # A half more: the exact quotient is no integer then, and further from one than the error of this one.
    quotient = tl.floor((step.to(tl.float32) + 0.5) * inverse)
    return step - quotient.to(tl.int32) * count


# What is read and written for a block of rows. Rows of padding stand for the last valid one until they are put.


@triton.jit
def _mixed(
    source, weights, steps, starts, counts, row, valid, sample, positions, factor, links,
    WRAP: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """(I + W) source on some rows; zero for padding."""
    exists, row = row < valid, tl.minimum(row, tl.maximum(valid - 1, 0))
    first, count, inverse = _document(starts, counts, row, valid, sample, positions)
    total = _rows(source, row, positions, GROUPS, WIDE)
    steps += factor * links
    size = positions.to(tl.int64) * tl.num_programs(2)
    weights += factor * links * size + sample * positions
    for link in tl.range(0, links, loop_unroll_factor=(UNROLLED + GROUPS - 1) // GROUPS):
        step = tl.load(steps + link).to(tl.int32)
        other, there = _ends(row, first, count, inverse, step, starts is None, WRAP, False)
        weight = tl.load(weights + row)
        if not WRAP:
            weight = tl.where(there, weight, 0)
        total += weight.to(total.dtype)[:, None, None] * _rows(source, other, positions, GROUPS, WIDE)
        weights += size
    return tl.where(exists[:, None, None], total, 0)


@triton.jit
def _unmixed(
    gradient, inputs, weights, of_weights, place, steps, starts, counts, row, valid, last, sample, positions, factor,
    links, WRAP: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """(I + W^T) gradient on some rows, zero for padding, from where links come; there also the weights' gradients,
    <gradient, inputs of these rows>, are put; zero for dropped links, and for rows of padding up to `last`.

    `place` is where the factor has them in `of_weights`.
    """
    exists, target = row < valid, row
    row = tl.minimum(row, tl.maximum(valid - 1, 0))
    first, count, inverse = _document(starts, counts, row, valid, sample, positions)
    own, total = _rows(inputs, row, positions, GROUPS, WIDE), _rows(gradient, row, positions, GROUPS, WIDE)
    steps += factor * links
    size = positions.to(tl.int64) * tl.num_programs(2)
    weights += factor * links * size + sample * positions
    of_weights += place * links * size + sample * positions
    for link in tl.range(0, links, loop_unroll_factor=(UNROLLED + GROUPS - 1) // GROUPS):
        step = tl.load(steps + link).to(tl.int32)
        other, there = _ends(row, first, count, inverse, step, starts is None, WRAP, True)
        weight, came = tl.load(weights + other), _rows(gradient, other, positions, GROUPS, WIDE)
        product = tl.sum(tl.sum(own * came, 2), 1)
        if not WRAP:
            weight, product = tl.where(there, weight, 0), tl.where(there, product, 0)
        total += weight.to(total.dtype)[:, None, None] * came
        # Every row comes from one row of its document for each link, and so every place is written once.
        tl.store(of_weights + tl.where(exists, other, target), tl.where(exists, product, 0), target < last)
        weights += size
        of_weights += size
    return tl.where(exists[:, None, None], total, 0)


@triton.jit
def _rows(slab, row, positions, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """Rows of a slab, (ROWS, GROUPS, WIDE) in fp32 or float64."""
    return exact(tl.load(_places(slab, row, positions, GROUPS, WIDE)))


@triton.jit
def _put(slab, rows, row, end, positions, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    tl.store(_places(slab, row, positions, GROUPS, WIDE), rows, (row < end)[:, None, None])


@triton.jit
def _places(slab, row, positions, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """Where rows lie in a slab, (ROWS, GROUPS, WIDE)."""
    groups = slab + tl.arange(0, GROUPS) * positions * WIDE
    return groups[None, :, None] + ((row * WIDE)[:, None] + tl.arange(0, WIDE)[None, :])[:, None, :]


@triton.jit
def _channels(slab, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """The channels of a slab, (1, GROUPS, WIDE)."""
    group = slab * (GROUPS * WIDE) + tl.arange(0, GROUPS) * WIDE
    return (group[:, None] + tl.arange(0, WIDE)[None, :])[None, :, :]


@triton.jit
def _put_result(result, rows, row, end, slab, width, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """Rows of a slab to their place in (N, D)."""
    channel = _channels(slab, GROUPS, WIDE)
    place = result + (row.to(tl.int64) * width)[:, None, None] + channel
    tl.store(place, rows, (row < end)[:, None, None] & (channel < width))


@triton.jit
def _copy(
    value, target, first, end, slab, positions, width,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A slab of value (N, D) to where its rows lie next to each other."""
    channel = _channels(slab, GROUPS, WIDE)
    for block in range(first, end, ROWS):
        row = block + tl.arange(0, ROWS)
        mask = (row < end)[:, None, None] & (channel < width)
        rows = tl.load(value + (row.to(tl.int64) * width)[:, None, None] + channel, mask, 0)
        _put(target, rows, row, end, positions, GROUPS, WIDE)
