"""Triton programs of lifting: both steps of a level, and their derivative, in one launch each.

A program has a strip of rows of a sample, and some channels. It goes through the strip block by block: first a step on
one block, then, behind it by as many blocks as the next step's taps reach, that one. What the first makes of rows
beside the strip, which the next one reads, the program makes again and stores as the strip that owns them does, to the
last bit: so no program waits for another. Positions run on beyond the period of a sample, rows around it.
"""

import triton
from triton import language as tl

from ..bands.gpu import extent


@triton.jit
def _around(position, period, crosses, BEFORE: tl.constexpr):
    """Rows of positions, of which none is so far before the first; those of a block that does not cross the ends of a
    period are rows as they are.
    """
    if crosses:  # divisions are long
        around = tl.maximum(period, 1)
        position = (position + tl.cdiv(BEFORE, around) * around) % around
    return position


@triton.jit
def _crosses(first, period, REACH: tl.constexpr, ROWS: tl.constexpr):
    """Whether a block of positions, or what so many taps reach from there, lies on both sides of an end."""
    return (first < REACH) | (first + ROWS + REACH > period)


@triton.jit
def _near(
    source, source_row, tap, position, exists, channel, period, crosses, valid, width, BACKWARDS: tl.constexpr,
    BEFORE: tl.constexpr,
):  # fmt: skip
    """The rows of a sample that a tap is multiplied with, zeros where there are none."""
    row = _around(position - tap if BACKWARDS else position + tap, period, crosses, BEFORE)
    there = (exists & (row < valid))[:, None] & (channel < width)
    return tl.load(source + row[:, None] * source_row + channel, there, 0)


@triton.jit
def _sum(
    source, source_row, taps, position, exists, channel, period, crosses, valid, width, TAPS: tl.constexpr,
    FIXED: tl.constexpr, BACKWARDS: tl.constexpr, BEFORE: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """sum over l of taps[l] source[k +- l] for positions k of a sample, without taps the sum of two rows."""
    total = tl.zeros((ROWS, CHANNELS), taps.dtype.element_ty)
    for tap in range(TAPS):
        value = _near(
            source, source_row, tap, position, exists, channel, period, crosses, valid, width, BACKWARDS, BEFORE
        ).to(total.dtype)  # fmt: skip
        if FIXED:
            total += value
        else:
            total += value * tl.load(taps + tap * width + channel, channel < width, 0)
    return total


@triton.jit
def _strip(period, strip):
    """Where the program's strip begins, and how many rows of the period it has."""
    begin = tl.program_id(0) * strip
    return begin, tl.maximum(0, tl.minimum(strip, period - begin))


@triton.jit
def _clear(rows, row_stride, begin, own, strip, count, channel, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Zeros in the rows of a strip at and past the period."""
    for first in range(own // ROWS * ROWS, tl.minimum(strip, count - begin), ROWS):
        line = first + tl.arange(0, ROWS)
        there = (line >= own) & (line < strip) & (begin + line < count)
        place = rows + (begin + line)[:, None] * row_stride + channel
        tl.store(place, tl.zeros((ROWS, CHANNELS), rows.dtype.element_ty), there[:, None] & (channel < width))


@triton.jit
def _step(
    rows, rows_row, source, source_row, taps, made, made_row, first, exists, channel, period, valid_rows, valid_source,
    width, scale, TAPS: tl.constexpr, FIXED: tl.constexpr, BACKWARDS: tl.constexpr, REACH: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """made = rows + scale step(source) at a block of positions from `first` on."""
    position, crosses = first + tl.arange(0, ROWS), _crosses(first, period, REACH, ROWS)
    total = _sum(
        source, source_row, taps, position, exists, channel, period, crosses, valid_source, width, TAPS, FIXED,
        BACKWARDS, REACH, ROWS, CHANNELS,
    )  # fmt: skip
    if not FIXED:
        total /= 1 + tl.exp(-total)
    row = _around(position, period, crosses, REACH)
    there = (exists & (row < valid_rows))[:, None] & (channel < width)
    value = tl.load(rows + row[:, None] * rows_row + channel, there, 0).to(total.dtype) + scale * total
    tl.store(made + row[:, None] * made_row + channel, value, exists[:, None] & (channel < width))


@triton.jit
def lift(
    rows, rows_sample, rows_row, source, source_sample, source_row, taps, made, made_sample, made_row, others,
    others_sample, others_row, other_taps, result, result_sample, result_row, lengths, positions, count, width, strip,
    scale, other_scale, TAPS: tl.constexpr, OTHER_TAPS: tl.constexpr, FIXED: tl.constexpr, BACKWARDS: tl.constexpr,
    BOTH: tl.constexpr, LEVELS: tl.constexpr, LEVEL: tl.constexpr, ROWS_OF_X: tl.constexpr, SOURCE_OF_X: tl.constexpr,
    OTHERS_OF_X: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """made = rows + scale step(source), and where it is to be BOTH, result = others + other_scale step(made).

    The first step reads in the direction that BACKWARDS says, the other one in the opposite. Rows of `made` and
    `result` at and past the sample's period are zero.
    """
    BESIDE: tl.constexpr = OTHER_TAPS - 1 if BOTH else 0  # rows that the other step reads beside the strip
    BEFORE: tl.constexpr = 0 if BACKWARDS else BESIDE
    LAG: tl.constexpr = (BESIDE + ROWS - 1) // ROWS
    REACH: tl.constexpr = TAPS + OTHER_TAPS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid_rows = extent(lengths, positions, sample, LEVELS, LEVEL, ROWS_OF_X)
    period, valid_source = extent(lengths, positions, sample, LEVELS, LEVEL, SOURCE_OF_X)
    period, valid_others = extent(lengths, positions, sample, LEVELS, LEVEL, OTHERS_OF_X)
    rows, source, made = rows + sample * rows_sample, source + sample * source_sample, made + sample * made_sample
    others, result = others + sample * others_sample, result + sample * result_sample
    begin, own = _strip(period, strip)
    line = tl.arange(0, ROWS)
    for number in range(tl.where(own > 0, tl.cdiv(own, ROWS) + LAG, 0)):
        exists = number * ROWS + line < own + BESIDE
        _step(
            rows, rows_row, source, source_row, taps, made, made_row, begin - BEFORE + number * ROWS, exists, channel,
            period, valid_rows, valid_source, width, scale, TAPS, FIXED, BACKWARDS, REACH, ROWS, CHANNELS,
        )  # fmt: skip
        if BOTH:
            tl.debug_barrier()  # the other step reads what other threads wrote
            if number >= LAG:
                behind = (number - LAG) * ROWS
                _step(
                    others, others_row, made, made_row, other_taps, result, result_row, begin + behind,
                    behind + line < own, channel, period, valid_others, period, width, other_scale, OTHER_TAPS, FIXED,
                    not BACKWARDS, REACH, ROWS, CHANNELS,
                )  # fmt: skip
    _clear(made, made_row, begin, own, strip, count, channel, width, ROWS, CHANNELS)
    if BOTH:
        _clear(result, result_row, begin, own, strip, count, channel, width, ROWS, CHANNELS)


@triton.jit
def _differentiate(
    gradient, gradient_row, valid, handed, handed_taps, passed, passed_row, source, source_row, taps, low, low_row,
    undone, undone_row, of_sum, of_taps, first, exists, begin, own, channel, period, width, scale, TAPS: tl.constexpr,
    HANDED_TAPS: tl.constexpr, BACKWARDS: tl.constexpr, PASSES: tl.constexpr, UNDOES: tl.constexpr,
    REACH: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """of_sum, the gradient of a step's sums over `source`, at a block of positions; `of_taps` with its products added.

    PASSES: what `handed`, the gradient of the sums of the step behind it, hands on by that one's taps is added to the
    gradient of this one's result first, and `passed` is both. UNDOES: `undone` are the rows that `low` was made from.
    """
    position, crosses = first + tl.arange(0, ROWS), _crosses(first, period, REACH, ROWS)
    row, inside = _around(position, period, crosses, REACH)[:, None], channel < width
    there = exists[:, None] & inside
    total = _sum(
        source, source_row, taps, position, exists, channel, period, crosses, period, width, TAPS, False, BACKWARDS,
        REACH, ROWS, CHANNELS,
    )  # fmt: skip
    share = 1 / (1 + tl.exp(-total))
    if UNDOES:
        value = tl.load(low + row * low_row + channel, there, 0).to(total.dtype) - scale * (total * share)
        tl.store(undone + row * undone_row + channel, value, there)
    of_result = tl.load(gradient + row * gradient_row + channel, there & (row < valid), 0).to(total.dtype)
    if PASSES:
        of_result += _sum(
            handed, width, handed_taps, position, exists, channel, period, crosses, period, width, HANDED_TAPS, False,
            BACKWARDS, REACH, ROWS, CHANNELS,
        )  # fmt: skip
        tl.store(passed + row * passed_row + channel, of_result, there)
    of_total = tl.where(exists[:, None], of_result * scale * (share * (1 + total * (1 - share))), 0)
    tl.store(of_sum + row * width + channel, of_total, there)
    mine = (position >= begin) & (position < begin + own)
    of_total, slot = tl.where(mine[:, None], of_total, 0), tl.arange(0, SLOTS)[:, None]
    for tap in range(TAPS):
        value = _near(
            source, source_row, tap, position, mine, channel, period, crosses, period, width, BACKWARDS, REACH
        ).to(of_taps.dtype)  # fmt: skip
        of_taps += tl.where(slot == tap, tl.sum(of_total * value, 0)[None, :], 0)
    return of_taps


@triton.jit
def _hand_on(
    gradient, gradient_row, valid, handed, taps, result, result_row, first, exists, channel, period, width,
    TAPS: tl.constexpr, BACKWARDS: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """result = gradient + what `handed`, the gradient of a step's sums, hands on by its taps."""
    position, crosses = first + tl.arange(0, ROWS), _crosses(first, period, REACH, ROWS)
    total = _sum(
        handed, width, taps, position, exists, channel, period, crosses, period, width, TAPS, False, BACKWARDS, REACH,
        ROWS, CHANNELS,
    )  # fmt: skip
    row, there = position[:, None], exists[:, None] & (channel < width)
    total += tl.load(gradient + row * gradient_row + channel, there & (row < valid), 0).to(total.dtype)
    tl.store(result + row * result_row + channel, total, there)


@triton.jit
def unlift(
    gradient, gradient_sample, gradient_row, others, others_sample, others_row, source, source_sample, source_row,
    other_source, other_source_sample, other_source_row, taps, other_taps, low, low_sample, low_row, undone,
    undone_sample, undone_row, of_sum, of_other_sum, passed, passed_sample, passed_row, result, result_sample,
    result_row, parts, other_parts, lengths, positions, count, width, strip, scale, other_scale, TAPS: tl.constexpr,
    OTHER_TAPS: tl.constexpr, BACKWARDS: tl.constexpr, UNDOES: tl.constexpr, LEVELS: tl.constexpr,
    LEVEL: tl.constexpr, GRADIENT_OF_X: tl.constexpr, OTHERS_OF_X: tl.constexpr, SLOTS: tl.constexpr,
    OTHER_SLOTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The derivative of the two learned steps of a level, of which the one that came last is the first here.

    of_sum, the gradient of the first one's sums over `source`, from `gradient`;
    passed = others + what of_sum hands on by the first one's taps;
    of_other_sum, the gradient of the other one's sums over `other_source`, from `passed`;
    result = gradient + what of_other_sum hands on by the other one's taps.

    The first one reads in the direction that BACKWARDS says, and the other one in the opposite. UNDOES: `other_source`
    is what `low` was made from, and is found on the way; and if it is "both", so is `undone`, from which `source` was.
    Each strip has a part of the gradients of both taps. Rows of `passed` and `result` at and past the period are zero.
    """
    AT_END: tl.constexpr = OTHER_TAPS - 1  # rows that the last of the three reads beside the strip
    OF_OTHERS: tl.constexpr = 1 if UNDOES == "none" else OTHER_TAPS
    BETWEEN: tl.constexpr = (TAPS if TAPS > OF_OTHERS else OF_OTHERS) - 1  # that the one before it reads beside its own
    LAG: tl.constexpr = (BETWEEN + ROWS - 1) // ROWS
    LAST: tl.constexpr = LAG + (AT_END + ROWS - 1) // ROWS
    REACH: tl.constexpr = TAPS + 2 * OTHER_TAPS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid = extent(lengths, positions, sample, LEVELS, LEVEL, GRADIENT_OF_X)
    period, valid_others = extent(lengths, positions, sample, LEVELS, LEVEL, OTHERS_OF_X)
    gradient, others = gradient + sample * gradient_sample, others + sample * others_sample
    source, other_source = source + sample * source_sample, other_source + sample * other_source_sample
    low, undone = low + sample * low_sample, undone + sample * undone_sample
    passed, result = passed + sample * passed_sample, result + sample * result_sample
    of_sum, of_other_sum = of_sum + sample * count * width, of_other_sum + sample * count * width
    begin, own = _strip(period, strip)
    line = tl.arange(0, ROWS)
    of_taps = tl.zeros((SLOTS, CHANNELS), taps.dtype.element_ty)
    of_other_taps = tl.zeros((OTHER_SLOTS, CHANNELS), taps.dtype.element_ty)
    for number in range(tl.where(own > 0, tl.cdiv(own, ROWS) + LAST, 0)):
        of_taps = _differentiate(
            gradient, gradient_row, valid, of_sum, taps, passed, passed_row, source, source_row, taps, low, low_row,
            other_source, other_source_row, of_sum, of_taps, begin - (AT_END if BACKWARDS else BETWEEN) + number * ROWS,
            number * ROWS + line < own + AT_END + BETWEEN, begin, own, channel, period, width, scale, TAPS, TAPS,
            BACKWARDS, False, UNDOES != "none", REACH, SLOTS, ROWS, CHANNELS,
        )  # fmt: skip
        tl.debug_barrier()  # what comes next reads what other threads wrote
        if number >= LAG:
            behind = (number - LAG) * ROWS
            of_other_taps = _differentiate(
                others, others_row, valid_others, of_sum, taps, passed, passed_row, other_source, other_source_row,
                other_taps, source, source_row, undone, undone_row, of_other_sum, of_other_taps,
                begin - (AT_END if BACKWARDS else 0) + behind, behind + line < own + AT_END, begin, own, channel,
                period, width, other_scale, OTHER_TAPS, TAPS, not BACKWARDS, True, UNDOES == "both", REACH,
                OTHER_SLOTS, ROWS, CHANNELS,
            )  # fmt: skip
        tl.debug_barrier()
        if number >= LAST:
            behind = (number - LAST) * ROWS
            _hand_on(
                gradient, gradient_row, valid, of_other_sum, other_taps, result, result_row, begin + behind,
                behind + line < own, channel, period, width, OTHER_TAPS, BACKWARDS, REACH, ROWS, CHANNELS,
            )  # fmt: skip
    _clear(passed, passed_row, begin, own, strip, count, channel, width, ROWS, CHANNELS)
    _clear(result, result_row, begin, own, strip, count, channel, width, ROWS, CHANNELS)
    slot, other_slot = tl.arange(0, SLOTS)[:, None], tl.arange(0, OTHER_SLOTS)[:, None]
    part = sample * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + (part * TAPS + slot) * width + channel, of_taps, (slot < TAPS) & (channel < width))
    place = other_parts + (part * OTHER_TAPS + other_slot) * width + channel
    tl.store(place, of_other_taps, (other_slot < OTHER_TAPS) & (channel < width))
