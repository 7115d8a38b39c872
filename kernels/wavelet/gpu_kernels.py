"""Periodised wavelet transforms in Triton, one kernel for each level."""

import torch
import triton
from triton import language as tl

from ..bands.gpu import CHANNELS, ROWS, around, correlate_into, extent, grid, new_parts, valid_of
from ..bands.layout import bands_of, period_of
from ..common.exact_gpu import exact

# Taps whose rows are asked for before the first of them is there.
UNROLLED = tl.constexpr(4)


def wavelet_analysis(x, filters, levels, lengths):
    """Bands (B N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = x.new_empty(batch * period_of(positions, levels), width)
    last, *details = bands_of(bands, batch, positions, levels)
    valid = valid_of(lengths, positions)
    rows = x
    for level, high in enumerate(reversed(details), 1):
        low = last if level == levels else torch.empty_like(high, dtype=filters.dtype)
        _split_level(rows, filters, valid, low, high, levels, level)
        rows = low
    return bands


def wavelet_synthesis(bands, filters, levels, batch, length, lengths):
    """Rows (B, N, D) from bands (B N', D)."""
    valid = valid_of(lengths, length)
    low, *details, first = bands_of(bands, batch, length, levels)
    for level, high in zip(range(levels, 1, -1), details, strict=True):
        low = _merge_level(low, high, filters, valid, levels, level)
    x = bands.new_empty(batch, length, bands.shape[1])
    _merge_level(low, first, filters, valid, levels, 1, x)
    return x


def wavelet_derivative(x, bands, filters, levels, lengths):
    """The derivative of <bands, analysis(x)>, which is <synthesis(bands), x>, by the taps, (T, D)."""
    batch, positions, _ = x.shape
    low, *details = bands_of(bands, batch, positions, levels)
    valid = valid_of(lengths, positions)
    rows = [x]
    for level in range(1, levels):
        approximation = filters.new_empty(details[levels - level].shape)
        _split_level(rows[-1], filters, valid, approximation, torch.empty_like(approximation), levels, level)
        rows.append(approximation)
    parts = left = new_parts(low, len(filters), [band.shape[1] for band in details])
    for level, high in zip(range(levels, 0, -1), details, strict=True):
        of_x = "all" if level == 1 else "none"
        left = correlate_into(left, low, high, rows[level - 1], valid, levels, level, of_x)
        if level > 1:
            low = _merge_level(low, high, filters, valid, levels, level)
    return parts.sum(0)


# Launches: levels depend on each other, so each one is a kernel of its own.


def _split_level(rows, filters, valid, low, high, levels, level):
    """Approximation and detail, both (B, M, D), of rows (B, .., D)."""
    _split[grid(low.shape[1], rows)](
        *(rows, *rows.stride()[:2], filters, *valid, low, *low.stride()[:2], high, *high.stride()[:2]),
        *(low.shape[1], rows.shape[2], len(filters), levels, level, "all" if level == 1 else "none", ROWS, CHANNELS),
    )


def _merge_level(low, high, filters, valid, levels, level, rows=None):
    """Rows (B, 2 M, D), or those that are given, from approximation and detail (B, M, D)."""
    if rows is None:
        rows = filters.new_empty(len(low), 2 * low.shape[1], low.shape[2])
    _merge[grid(low.shape[1], low)](
        *(low, *low.stride()[:2], high, *high.stride()[:2], filters, *valid, rows, *rows.stride()[:2]),
        *(rows.shape[1], rows.shape[2], len(filters), levels, level, "all" if level == 1 else "none", ROWS, CHANNELS),
    )
    return rows


# Kernels: sums over the taps for a block of rows and channels. Indices run around the period of the sample.


@triton.jit
def _split(
    rows,
    rows_sample,
    rows_row,
    filters,
    lengths,
    positions,
    low,
    low_sample,
    low_row,
    high,
    high_sample,
    high_row,
    count,
    width,
    TAPS: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    OF_X: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A block of coefficients; those at and past the sample's period are zero."""
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid = extent(lengths, positions, sample, LEVELS, LEVEL - 1, OF_X)
    exists = 2 * t < period
    source = rows + sample * rows_sample
    # Divisions are long, and only where a period ends does a row need one.
    if (tl.program_id(0) + 1) * 2 * ROWS + TAPS > period:
        lows, highs = _by_taps(source, rows_row, filters, t, exists, period, valid, channel, width, TAPS, True)
    else:
        lows, highs = _by_taps(source, rows_row, filters, t, exists, period, valid, channel, width, TAPS, False)
    inside = (t < count)[:, None] & (channel < width)
    tl.store(low + sample * low_sample + t[:, None] * low_row + channel, lows, inside)
    tl.store(high + sample * high_sample + t[:, None] * high_row + channel, highs, inside)


@triton.jit
def _merge(
    low,
    low_sample,
    low_row,
    high,
    high_sample,
    high_row,
    filters,
    lengths,
    positions,
    rows,
    rows_sample,
    rows_row,
    count,
    width,
    TAPS: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    OF_X: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A block of pairs of rows; rows that the sample does not have are zero."""
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    period, valid = extent(lengths, positions, sample, LEVELS, LEVEL - 1, OF_X)
    there = (2 * t < period)[:, None] & (channel < width)
    half = tl.maximum(period // 2, 1)
    low += sample * low_sample
    high += sample * high_sample
    if tl.program_id(0) * ROWS < TAPS // 2:
        even, odd = _by_steps(low, low_row, high, high_row, filters, t, there, half, channel, width, TAPS, True)
    else:
        even, odd = _by_steps(low, low_row, high, high_row, filters, t, there, half, channel, width, TAPS, False)
    for phase in tl.static_range(2):
        row = 2 * t + phase
        value = tl.where((row < valid)[:, None], odd if phase else even, 0)
        place = rows + sample * rows_sample + row[:, None] * rows_row + channel
        tl.store(place, value, (row < count)[:, None] & (channel < width))


# Sums over taps for a block's rows t. AROUND: rows are counted around the period.


@triton.jit
def _by_taps(rows, apart, filters, t, exists, period, valid, channel, width, TAPS: tl.constexpr, AROUND: tl.constexpr):
    """Approximation and detail of rows that are so far apart."""
    lows = tl.zeros((t.shape[0], channel.shape[0]), filters.dtype.element_ty)
    highs = tl.zeros((t.shape[0], channel.shape[0]), filters.dtype.element_ty)
    for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLLED):
        row = around(2 * t + tap, period, AROUND)
        there = (exists & (row < valid))[:, None] & (channel < width)
        value = exact(tl.load(rows + row[:, None] * apart + channel, there, 0)).to(lows.dtype)
        lows += value * tl.load(filters + tap * width + channel, channel < width, 0)
        mirrored = tl.load(filters + (TAPS - 1 - tap) * width + channel, channel < width, 0) * (1 - 2 * (tap % 2))
        highs += value * mirrored
    return lows, highs


@triton.jit
def _by_steps(
    low, low_row, high, high_row, filters, t, there, half, channel, width, TAPS: tl.constexpr, AROUND: tl.constexpr
):
    """Even and odd rows of approximation and detail."""
    even = tl.zeros((t.shape[0], channel.shape[0]), filters.dtype.element_ty)
    odd = tl.zeros((t.shape[0], channel.shape[0]), filters.dtype.element_ty)
    for step in tl.range(0, TAPS // 2, loop_unroll_factor=UNROLLED):
        # A multiple of the period keeps the row from being negative.
        row = around(t - step + TAPS * half if AROUND else t - step, half, AROUND)
        from_low = exact(tl.load(low + row[:, None] * low_row + channel, there, 0)).to(even.dtype)
        from_high = exact(tl.load(high + row[:, None] * high_row + channel, there, 0)).to(even.dtype)
        tap = filters + 2 * step * width + channel
        mirrored = filters + (TAPS - 1 - 2 * step) * width + channel
        even += from_low * tl.load(tap, channel < width, 0)
        even += from_high * tl.load(mirrored, channel < width, 0)
        odd += from_low * tl.load(tap + width, channel < width, 0)
        odd -= from_high * tl.load(mirrored - width, channel < width, 0)
    return even, odd
