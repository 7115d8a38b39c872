"""Triton code of all periodised transforms: the extent of a sample's rows, and the gradient of taps.

Rows are given as views (B, rows, D) whose channels lie side by side. They hold the rows of a band, all of them up to
the period of their level, or rows of x, of which a sample may have fewer: `of_x` is "none", "all", "even" or "odd".
"""

from typing import NamedTuple

import torch
import triton
from triton import language as tl

from ..common.grids import checked
from ..common.interpreter import interpreted
from ..common.lengths_gpu import length_of

if interpreted():
    ROWS, CHANNELS, TAPS, CHUNKS = 16, 16, 4, 2
else:
    ROWS, CHANNELS, TAPS, CHUNKS = 32, 64, 8, 256


class Valid(NamedTuple):
    """Which rows of x are valid: the first so many of each sample, or all positions where `lengths` is None."""

    lengths: torch.Tensor | None
    positions: int


def valid_of(lengths: torch.Tensor | None, positions: int) -> Valid:
    """Lengths (B,) as kernels read them."""
    return Valid(None if lengths is None else lengths.contiguous(), positions)


def grid(rows: int, x: torch.Tensor) -> tuple[int, int, int]:
    """Programs for each block of so many rows and of the channels of each sample of x (B, N, D)."""
    return checked(triton.cdiv(rows, ROWS), triton.cdiv(x.shape[2], CHANNELS), len(x))


@triton.jit
def extent(lengths, positions, sample, LEVELS: tl.constexpr, DEPTH: tl.constexpr, OF_X: tl.constexpr):
    """Period n' / 2^DEPTH of a sample's rows, and how many of them there are in what OF_X says."""
    length = length_of(lengths, sample, positions)
    period = ((length + (1 << LEVELS) - 1) >> LEVELS) << (LEVELS - DEPTH)
    if OF_X == "all":
        valid = length
    elif OF_X == "even":
        valid = (length + 1) // 2
    elif OF_X == "odd":
        valid = length // 2
    else:
        valid = period
    return period, valid


def new_parts(signal: torch.Tensor, taps: int, counts: list[int]) -> torch.Tensor:
    """Room for the sums of several calls of `correlate_into`, (parts, taps, D) fp32 or wider: their sum is wanted.

    Args:
        signal: (B, .., D), as the calls will have it.
        counts: rows of a band in each call.
    """
    parts = sum(2 * _chunks(len(signal), count) for count in counts)
    return signal.new_empty(parts, taps, signal.shape[2], dtype=torch.promote_types(signal.dtype, torch.float32))


def correlate_into(
    parts: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    rows: torch.Tensor,
    valid: Valid,
    levels: int,
    level: int,
    of_x: str = "none",
) -> torch.Tensor:
    """sum over samples b and rows t of band[b, t] rows[b, (2 t + tap) mod period], (taps, D), by parts of them.

    The sums of the approximation `low` are put into the first of `parts` and those of the detail `high` behind them,
    where tap l is in the place of tap T - 1 - l, with the sign (-1)^l, as high-pass taps are made; the rest of `parts`
    is given back.

    Args:
        low: (B, .., D), rows of a level's band; `high` alike, perhaps of another dtype.
        rows: (B, .., D), those of the level before.
        valid: rows of x.
        of_x: what `rows` hold.
    """
    batch, count, width = low.shape
    blocks, chunks, taps = batch * triton.cdiv(count, ROWS), _chunks(batch, count), parts.shape[1]
    _correlate[2 * chunks, triton.cdiv(taps, TAPS), triton.cdiv(width, CHANNELS)](
        *(low, *low.stride()[:2], high, *high.stride()[:2], rows, *rows.stride()[:2], *valid, parts),
        *(batch, count, width, taps, levels, level, of_x, triton.cdiv(blocks, chunks), ROWS, CHANNELS, TAPS),
    )
    return parts[2 * chunks :]


def _chunks(batch: int, count: int) -> int:
    return min(batch * triton.cdiv(count, ROWS), CHUNKS)


@triton.jit
def _correlate(
    low,
    low_sample,
    low_row,
    high,
    high_sample,
    high_row,
    rows,
    rows_sample,
    rows_row,
    lengths,
    positions,
    parts,
    batch,
    count,
    width,
    taps,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    OF_X: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
):
    """One chunk of BLOCKS blocks of a band's rows, some taps and channels."""
    part, group, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0) // 2
    of_high, chunk = part // chunks, part % chunks
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    tap = group * TAPS + tl.arange(0, TAPS)
    of_sample = tl.cdiv(count, ROWS)
    total = tl.zeros((TAPS, CHANNELS), parts.dtype.element_ty)
    for number in range(chunk * BLOCKS, tl.minimum((chunk + 1) * BLOCKS, batch * of_sample)):
        sample = (number // of_sample).to(tl.int64)
        t = number % of_sample * ROWS + tl.arange(0, ROWS)
        period, valid = extent(lengths, positions, sample, LEVELS, LEVEL - 1, OF_X)
        exists = t * 2 < period
        inside = exists[:, None] & (channel < width)
        if of_high == 1:
            value = tl.load(high + sample * high_sample + t[:, None] * high_row + channel, inside, 0).to(total.dtype)
        else:
            value = tl.load(low + sample * low_sample + t[:, None] * low_row + channel, inside, 0).to(total.dtype)
        around = tl.maximum(period, 1)
        row = (t[:, None] * 2 + tap) % around
        place = rows + sample * rows_sample + row[:, :, None] * rows_row + channel
        there = exists[:, None] & (row < valid) & (tap < taps)
        near = tl.load(place, there[:, :, None] & (channel < width), 0).to(total.dtype)
        total += tl.sum(value[:, None, :] * near, 0)
    total *= (1 - 2 * of_high * (tap % 2))[:, None]
    to = tap + of_high * (taps - 1 - 2 * tap)
    place = parts + (part * taps + to[:, None]) * width + channel
    tl.store(place, total, (tap < taps)[:, None] & (channel < width))
