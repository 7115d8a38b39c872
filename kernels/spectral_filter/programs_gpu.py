"""Triton programs around the Fourier transforms. Complex numbers are real pairs, next to each other in memory."""

import triton
from triton import language as tl

from ..common.lengths_gpu import length_of


@triton.jit
def segment_means(x, lengths, means, positions, features, width, divisor, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Sums of each segment's channels, divided, (B, r, N), zero at and past each length."""
    row, segment, sample = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.program_id(2)
    valid = row < length_of(lengths, sample, positions)
    x += sample.to(tl.int64) * positions * features + segment * width
    total = tl.zeros([ROWS], means.dtype.element_ty)
    for first in range(0, width, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        place = row.to(tl.int64)[:, None] * features + channel
        value = tl.load(x + place, valid[:, None] & (channel < width), 0)
        total += tl.sum(value.to(total.dtype), 1)
    means += (sample.to(tl.int64) * tl.num_programs(1) + segment) * positions
    tl.store(means + row, total / divisor, row < positions)


@triton.jit
def apply_response(transformed, response, product, samples, width, bins, bin_stride, channel_stride, last,
                   transformed_stride, product_stride, CHANNELS: tl.constexpr, BINS: tl.constexpr):  # fmt: skip
    """product (B, D, bins, 2) of the segments' transforms (B, r, bins, 2) and the response, which is read once.

    Samples of both are so far from each other; `last` is as for `_load_response`.
    """
    bin, channel, segment = _of_program(width, CHANNELS, BINS)
    exists = (channel < width)[:, None] & (bin < bins)
    real, imaginary = _load_response(
        response, segment * width + channel, bin, bin_stride, channel_stride, last, exists, product.dtype.element_ty
    )
    into = product + 2 * ((segment * width + channel).to(tl.int64)[:, None] * bins + bin)
    mean = transformed + 2 * (segment.to(tl.int64) * bins + bin)
    for _ in range(samples):
        a, b = tl.load(mean, bin < bins, 0), tl.load(mean + 1, bin < bins, 0)
        tl.store(into, a * real - b * imaginary, exists)
        tl.store(into + 1, a * imaginary + b * real, exists)
        mean += transformed_stride
        into += product_stride


@triton.jit
def finish_rows(filtered, x, lengths, result, positions, features, period, BESIDE: tl.constexpr, ROWS: tl.constexpr,
                CHANNELS: tl.constexpr):  # fmt: skip
    """Rows of the result from filtered (B, D, period), zero at and past each length, and those of x beside them."""
    row, channel, sample, valid, exists = _of_rows(lengths, positions, features, ROWS, CHANNELS)
    value = tl.load(filtered + (sample * features + channel) * period + row[:, None], valid, 0)
    into = result + (sample * positions + row)[:, None] * (features * (1 + BESIDE)) + channel
    tl.store(into, value, exists)
    if BESIDE:
        own = tl.load(x + (sample * positions + row)[:, None] * features + channel, valid, 0)
        tl.store(into + features, own, exists)


@triton.jit
def turn_rows(gradient, lengths, rows, positions, features, stride, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The first channels of gradient (B, N, stride), as rows (B, D, N) that are zero at and past each length."""
    row, channel, sample, valid, exists = _of_rows(lengths, positions, features, ROWS, CHANNELS)
    value = tl.load(gradient + (sample * positions + row)[:, None] * stride + channel, valid, 0)
    tl.store(rows + (sample * features + channel) * positions + row[:, None], value, exists)


@triton.jit
def correlate(rows, transformed, response, of_means, of_response, samples, width, bins, bin_stride, channel_stride,
              last, rows_stride, transformed_stride, of_means_stride, of_bin_stride, of_channel_stride,
              WHOLE: tl.constexpr, CHANNELS: tl.constexpr, BINS: tl.constexpr):  # fmt: skip
    """Correlations of rows (B, D, bins, 2), transformed gradients, with the response, summed over a block of a
    segment's channels, (B, r, blocks, bins, 2), and with the segments' transforms, summed over the samples.

    Samples of the first three are so far from each other. WHOLE: sums over samples are the gradient of the spectrum,
    whose frequencies 0 and `last` stand for themselves alone, where all others stand for their conjugates too.
    """
    bin, channel, segment = _of_program(width, CHANNELS, BINS)
    exists = (channel < width)[:, None] & (bin < bins)
    feature = segment * width + channel
    wide = rows.dtype.element_ty
    real, imaginary = _load_response(response, feature, bin, bin_stride, channel_stride, last, exists, wide)
    of_real, of_imaginary = tl.zeros([CHANNELS, BINS], wide), tl.zeros([CHANNELS, BINS], wide)
    value = rows + 2 * (feature.to(tl.int64)[:, None] * bins + bin)
    mean = transformed + 2 * (segment.to(tl.int64) * bins + bin)
    of_mean = of_means + 2 * (tl.program_id(1).to(tl.int64) * bins + bin)
    for _ in range(samples):
        c, d = tl.load(value, exists, 0), tl.load(value + 1, exists, 0)
        a, b = tl.load(mean, bin < bins, 0), tl.load(mean + 1, bin < bins, 0)
        tl.store(of_mean, tl.sum(c * real + d * imaginary, 0), bin < bins)
        tl.store(of_mean + 1, tl.sum(d * real - c * imaginary, 0), bin < bins)
        of_real += c * a + d * b
        of_imaginary += d * a - c * b
        value += rows_stride
        mean += transformed_stride
        of_mean += of_means_stride
    if WHOLE:
        alone = (bin == 0) | (bin == last)
        of_real *= tl.where(alone, 1, 2)
        of_imaginary *= tl.where(alone, 0, 2)
    into = of_response + feature.to(tl.int64)[:, None] * of_channel_stride + bin.to(tl.int64) * of_bin_stride
    tl.store(into, of_real, exists)
    tl.store(into + 1, of_imaginary, exists)


@triton.jit
def spread_means(of_means, gradient, lengths, of_x, positions, features, width, period, stride, BESIDE: tl.constexpr,
                 ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """The gradient of x from that of the segments' sums, (B, r, period), and that of x beside the result."""
    row, channel, sample, valid, exists = _of_rows(lengths, positions, features, ROWS, CHANNELS)
    segment = sample * (features // width) + channel // width
    value = tl.load(of_means + segment * period + row[:, None], valid, 0) / (period * width)
    if BESIDE:
        place = (sample * positions + row)[:, None] * stride + features + channel
        value += tl.load(gradient + place, valid, 0).to(value.dtype)
    tl.store(of_x + (sample * positions + row)[:, None] * features + channel, value, exists)


@triton.jit
def _of_rows(lengths, positions, features, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Rows, channels and sample (int64) of a program, which of them are valid, and which exist."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    there = channel < features
    valid = (row < length_of(lengths, sample, positions))[:, None] & there
    return row, channel, sample, valid, (row < positions)[:, None] & there


@triton.jit
def _of_program(width, CHANNELS: tl.constexpr, BINS: tl.constexpr):
    """Frequencies, channels of a segment, and the segment of a program: axis 1 has the blocks of each segment."""
    blocks = tl.cdiv(width, CHANNELS)
    segment, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    return tl.program_id(0) * BINS + tl.arange(0, BINS), block * CHANNELS + tl.arange(0, CHANNELS), segment


@triton.jit
def _load_response(response, feature, bin, bin_stride, channel_stride, last, exists, wide: tl.constexpr):
    """Real and imaginary parts of the response of some channels at some frequencies; real at 0 and `last`, as a
    transform back to real numbers must have it."""
    place = response + feature.to(tl.int64)[:, None] * channel_stride + bin.to(tl.int64) * bin_stride
    turns = exists & (bin > 0) & (bin != last)
    return tl.load(place, exists, 0).to(wide), tl.load(place + 1, turns, 0).to(wide)
