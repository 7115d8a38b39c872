"""Triton kernels of Paramixer's factors; gpu_kernels.py says what a program has, and launches them.

A program's piece of a sample is axis 0 of the grid, its slab of channels axis 1, its sample axis 2. Slabs lie in memory
as (rows, CHANNELS), with zeros in channels that do not exist. Rows of padding are neither read nor mixed; results and
gradients are zero there. Without `starts` and `counts`, of each row's document, a sample is one document.
"""

import triton
from triton import language as tl

# Numbers that no address needs as constants: one program for all of them, 1 and multiples of 16 included.
COUNTS = ["slots", "rows", "positions", "factors", "links"]


@triton.jit(do_not_specialize=COUNTS)
def mix_all(
    value, states, weights, offsets, lengths, starts, counts, result, slots, rows, positions, width, factors, links,
    WRAP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """All factors on value; without `result` all but the last, and what goes into each stays in `states`."""
    slab, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, valid, last = _piece(lengths, starts, counts, sample, rows, positions)
    size = positions.to(tl.int64) * CHANNELS
    states += (sample * tl.num_programs(1) + slab) * slots * size
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
                *(source, weights, offsets, starts, counts, row, valid, sample, positions, factor, links),
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
    gradient, inputs, states, weights, offsets, lengths, starts, counts, of_value, of_weights, low, high, slots,
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
                    *(source, places, offsets, starts, counts, row, valid, last, sample, positions, factor, links),
                    *(WRAP, CHANNELS),
                )
        end = last if TOGETHER else tl.where(factor == 0, last, valid)
        for block in range(first, end, ROWS):
            row = block + tl.arange(0, ROWS)
            if TOGETHER:
                _put_products(
                    *(source, places, offsets, starts, counts, row, valid, last, sample, positions, factor, links),
                    *(WRAP, CHANNELS),
                )
            mixed = _mixed(
                *(source, weights, offsets, starts, counts, row, valid, sample, positions, factor, links),
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
    """The first row of each row's document, and how many it has, at least one."""
    if starts is None:
        first, count = row * 0, tl.maximum(valid, 1)
    else:
        exists = row < valid
        first = tl.load(starts + sample * positions + row, exists, 0)
        count = tl.load(counts + sample * positions + row, exists, 1)
    return first, count


@triton.jit
def _ends(row, first, count, offset, exists, ALONE: tl.constexpr, WRAP: tl.constexpr):
    """Rows that are `offset` away within documents that begin at `first` and have `count` rows, and which exist."""
    if WRAP:
        steps = tl.abs(offset)
        if ALONE:
            # One number for all rows, which is seldom divided.
            if steps >= count:
                steps = steps % count
        else:
            steps = steps % count
        moved = row - first + tl.where(offset < 0, -steps, steps)
        moved = tl.where(moved < 0, moved + count, tl.where(moved >= count, moved - count, moved))
        there = exists
    else:
        moved = row - first + offset
        there = exists & (moved >= 0) & (moved < count)
    return first + moved, there


# What is read and written for a block of rows.


@triton.jit
def _mixed(
    source, weights, offsets, starts, counts, row, valid, sample, positions, factor, links,
    WRAP: tl.constexpr, TRANSPOSED: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """(I + W) source on some rows, or (I + W^T) source, which gathers from where links come."""
    exists = row < valid
    first, count = _document(starts, counts, row, valid, sample, positions)
    total = _rows(source, row, exists, CHANNELS)
    for link in range(links):
        offset = tl.load(offsets + factor * links + link)
        if TRANSPOSED:
            other, there = _ends(row, first, count, -offset, exists, starts is None, WRAP)
            owner = other
        else:
            other, there = _ends(row, first, count, offset, exists, starts is None, WRAP)
            owner = row
        of_link = weights + ((factor * links + link) * tl.num_programs(2) + sample) * positions
        weight = tl.load(of_link + owner, there, 0).to(total.dtype)
        total += weight[:, None] * _rows(source, other, there, CHANNELS)
    return total


@triton.jit
def _put_products(
    gradient, places, offsets, starts, counts, row, valid, last, sample, positions, factor, links,
    WRAP: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """For each link <gradient, what it leads to>; zero for dropped links, and for rows of padding up to `last`.

    `places` is what links lead to, where the products go, and at which place the factor has them there.
    """
    source, of_weights, place = places
    exists = row < valid
    first, count = _document(starts, counts, row, valid, sample, positions)
    own = _rows(gradient, row, exists, CHANNELS)
    for link in range(links):
        offset = tl.load(offsets + factor * links + link)
        other, there = _ends(row, first, count, offset, exists, starts is None, WRAP)
        products = tl.sum(own * _rows(source, other, there, CHANNELS), 1)
        of_link = of_weights + ((place * links + link) * tl.num_programs(2) + sample) * positions
        tl.store(of_link + row, products, row < last)


@triton.jit
def _rows(slab, row, exists, CHANNELS: tl.constexpr):
    """Rows of a slab in fp32 or float64; zeros for those that do not exist."""
    place = row.to(tl.int64)[:, None] * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.load(slab + place, exists[:, None], 0)
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
