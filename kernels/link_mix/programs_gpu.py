"""Triton kernels of Paramixer's factors; gpu_kernels.py says what a program has, and launches them.

A program's piece of a sample is axis 0 of the grid, its slab of channels axis 1, its sample axis 2. Slabs lie in memory
as (rows, CHANNELS), with zeros in channels that do not exist. Rows of padding are not read: the last valid row stands
for them, and zeros are written; results and gradients are zero there. Without `starts` and `counts`, of each row's
document, a sample is one document.
"""

import triton
from triton import language as tl

# Numbers that no address needs as constants: one program for all of them, 1 and multiples of 16 included.
COUNTS = ["apart", "slots", "rows", "positions", "factors", "links"]
# Links whose rows are asked for before the first of them is there: else a program waits for each.
UNROLLED = tl.constexpr(4)


@triton.jit(do_not_specialize=COUNTS)
def mix_all(
    value, states, weights, steps, apart, lengths, starts, counts, result, slots, rows, positions, width, factors,
    links, WRAP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """All factors on value; without `result` all but the last, and what goes into each stays in `states`."""
    slab, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, valid, last = _piece(lengths, starts, counts, sample, rows, positions)
    size = positions.to(tl.int64) * CHANNELS
    states += (sample * tl.num_programs(1) + slab) * slots * size
    steps += sample * apart
    _copy(value + sample * positions * width, states, first, valid, slab, width, ROWS, CHANNELS)
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
                *(WRAP, False, CHANNELS),
            )
            if result is None:
                _put(target, mixed, row, end, CHANNELS)
            else:
                if factor < factors - 1:
                    _put(target, mixed, row, end, CHANNELS)
                else:
                    _put_result(result, mixed, row, end, slab, width, CHANNELS)
        # What a thread has written is read by others of its program.
        tl.debug_barrier()


@triton.jit(do_not_specialize=[*COUNTS, "low", "high"])
def unmix_all(
    gradient, inputs, states, weights, steps, apart, lengths, starts, counts, of_value, of_weights, low, high, slots,
    rows, positions, width, factors, links,
    WRAP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """The transposed factors high - 1 to low, and this slab's part of the gradients of their weights.

    `inputs` is what goes into each factor. `states` has two gradients, and keeps one between launches; the launch of
    the last factor takes it from `gradient`, that of the first writes `of_value`. `TOGETHER`: a cache holds slabs of
    gradient and inputs at once; else one is walked over after the other.
    """
    slab, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, valid, last = _piece(lengths, starts, counts, sample, rows, positions)
    size = positions.to(tl.int64) * CHANNELS
    inputs += (sample * tl.num_programs(1) + slab) * factors * size
    states += (sample * tl.num_programs(1) + slab) * slots * size
    of_value += sample * positions * width
    steps += sample * apart
    of_weights += slab.to(tl.int64) * (high - low) * links * tl.num_programs(2) * positions
    if high == factors:
        source = states + factors % slots * size
        _copy(gradient + sample * positions * width, source, first, valid, slab, width, ROWS, CHANNELS)
        tl.debug_barrier()
    for step in range(high - low):
        factor = high - 1 - step
        source = states + (factor + 1) % slots * size
        target = states + factor % slots * size
        places = inputs + factor * size, of_weights, factor - low
        if not TOGETHER:
            for block in range(first, last, ROWS):
                row = block + tl.arange(0, ROWS)
                _put_products(
                    *(source, places, steps, starts, counts, row, valid, last, sample, positions, factor, links),
                    *(WRAP, CHANNELS),
                )
        end = last if TOGETHER else tl.where(factor == 0, last, valid)
        for block in range(first, end, ROWS):
            row = block + tl.arange(0, ROWS)
            if TOGETHER:
                _put_products(
                    *(source, places, steps, starts, counts, row, valid, last, sample, positions, factor, links),
                    *(WRAP, CHANNELS),
                )
            mixed = _mixed(
                *(source, weights, steps, starts, counts, row, valid, sample, positions, factor, links),
                *(WRAP, True, CHANNELS),
            )
            if factor > 0:
                _put(target, mixed, row, end, CHANNELS)
            else:
                _put_result(of_value, mixed, row, end, slab, width, CHANNELS)
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
    """Rows that are `step` away, and whether they exist in the documents that begin at `first` and have `count` rows;
    else the row itself. TRANSPOSED: those that are `step` away from it.
    """
    if WRAP:
        if not ALONE:
            step = _remainder(step, count, inverse)
        if TRANSPOSED:
            other = row - step
            other = tl.where(other < first, other + count, other)
        else:
            other = row + step
            other = tl.where(other >= first + count, other - count, other)
        there = row == row
    else:
        other = row - step if TRANSPOSED else row + step
        there = (other >= first) & (other < first + count)
        other = tl.where(there, other, row)
    return other, there


@triton.jit
def _remainder(step, count, inverse):
    """step modulo count, 0 to count - 1, where `inverse` is 1 / count in fp32, for counts up to 2^22: a card has no
    division of integers, and a loop with the many instructions that stand for one is slow."""
    # The first quotient may be wrong by 1 and by a 2^22th of itself, the second one by 1.
    rest = step - (step.to(tl.float32) * inverse).to(tl.int32) * count
    rest = rest - (rest.to(tl.float32) * inverse).to(tl.int32) * count
    return tl.where(rest < 0, rest + count, tl.where(rest >= count, rest - count, rest))


# What is read and written for a block of rows. Rows of padding stand for the last valid one until they are put.


@triton.jit
def _mixed(
    source, weights, steps, starts, counts, row, valid, sample, positions, factor, links,
    WRAP: tl.constexpr, TRANSPOSED: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """(I + W) source on some rows, or (I + W^T) source, which gathers from where links come; zero for padding."""
    exists, row = row < valid, tl.minimum(row, tl.maximum(valid - 1, 0))
    first, count, inverse = _document(starts, counts, row, valid, sample, positions)
    total = _rows(source, row, CHANNELS)
    steps += factor * links
    size = positions.to(tl.int64) * tl.num_programs(2)
    weights += factor * links * size + sample * positions
    for link in tl.range(0, links, loop_unroll_factor=UNROLLED):
        step = tl.load(steps + link).to(tl.int32)
        other, there = _ends(row, first, count, inverse, step, starts is None, WRAP, TRANSPOSED)
        weight = tl.load(weights + (other if TRANSPOSED else row))
        if not WRAP:
            weight = tl.where(there, weight, 0)
        total += weight.to(total.dtype)[:, None] * _rows(source, other, CHANNELS)
        weights += size
    return tl.where(exists[:, None], total, 0)


@triton.jit
def _put_products(
    gradient, places, steps, starts, counts, row, valid, last, sample, positions, factor, links,
    WRAP: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """For each link <gradient, what it leads to>; zero for dropped links, and for rows of padding up to `last`.

    `places` is what links lead to, where the products go, and at which place the factor has them there.
    """
    source, of_weights, place = places
    exists, target = row < valid, row
    row = tl.minimum(row, tl.maximum(valid - 1, 0))
    first, count, inverse = _document(starts, counts, row, valid, sample, positions)
    own = _rows(gradient, row, CHANNELS)
    steps += factor * links
    size = positions.to(tl.int64) * tl.num_programs(2)
    of_weights += place * links * size + sample * positions
    for link in tl.range(0, links, loop_unroll_factor=UNROLLED):
        step = tl.load(steps + link).to(tl.int32)
        other, there = _ends(row, first, count, inverse, step, starts is None, WRAP, False)
        products = tl.sum(own * _rows(source, other, CHANNELS), 1)
        tl.store(of_weights + target, tl.where(exists & there, products, 0), target < last)
        of_weights += size


@triton.jit
def _rows(slab, row, CHANNELS: tl.constexpr):
    """Rows of a slab in fp32 or float64."""
    rows = tl.load(slab + (row.to(tl.int64)[:, None] * CHANNELS + tl.arange(0, CHANNELS)))
    if rows.dtype != tl.float64:
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def _put(slab, rows, row, end, CHANNELS: tl.constexpr):
    place = row.to(tl.int64)[:, None] * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(slab + place, rows, (row < end)[:, None])


@triton.jit
def _put_result(result, rows, row, end, slab, width, CHANNELS: tl.constexpr):
    """Rows of a slab to their place in (N, D)."""
    channel = slab * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(result + row.to(tl.int64)[:, None] * width + channel, rows, (row < end)[:, None] & (channel < width))


@triton.jit
def _copy(value, target, first, end, slab, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """A slab of value (N, D) to where its rows lie next to each other."""
    channel = slab * CHANNELS + tl.arange(0, CHANNELS)
    for block in range(first, end, ROWS):
        row = block + tl.arange(0, ROWS)
        mask = (row < end)[:, None] & (channel < width)
        _put(target, tl.load(value + row.to(tl.int64)[:, None] * width + channel, mask, 0), row, end, CHANNELS)
