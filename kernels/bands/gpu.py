"""Triton code of all periodised transforms: the extent of a sample's rows, and the gradient of taps.

Rows are given as views (B, rows, D) whose channels lie side by side. They hold the rows of a band, all of them up to
the period of their level, or rows of x, of which a sample may have fewer: `of_x` is "none", "all", "even" or "odd".
"""

from typing import NamedTuple

import torch
import triton
from triton import language as tl

from ..common.exact_gpu import exact
from ..common.grids import checked
from ..common.interpreter import interpreted
from ..common.lengths_gpu import length_of

if interpreted():
    ROWS, CHANNELS, TAPS, STEP, PROGRAMS = 16, 16, 4, 8, 6
else:
    # A program of the taps' gradient reads STEP rows of a band at a time, and what TAPS taps of each lead to. There are
    # eight programs for each multiprocessor of the largest of our cards, which runs four at once.
    ROWS, CHANNELS, TAPS, STEP, PROGRAMS = 32, 64, 4, 16, 1056
REGISTERS, OF_FLOAT64 = 128, 255


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


@triton.jit
def around(index, period, has_end):
    """Rows of a block, counted around a period; without the end of one, `has_end`, they lie in it as they are."""
    if has_end:  # divisions are long
        index = index % tl.maximum(period, 1)
    return index


def new_parts(signal: torch.Tensor, taps: int, counts: list[int]) -> torch.Tensor:
    """Room for the sums of several calls of `correlate_into`, (parts, taps, D) fp32 or wider: their sum is wanted.

    Args:
        signal: (B, .., D), as the calls will have it.
        counts: rows of a band in each call.
    """
    parts = sum(2 * _chunks(signal, taps, count) for count in counts)
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
    taps = parts.shape[1]
    chunks, steps = _chunks(low, taps, count), batch * triton.cdiv(count, STEP)
    _correlate[chunks, *_blocks(taps, width)](
        *(low, *low.stride()[:2], high, *high.stride()[:2], rows, *rows.stride()[:2], *valid, parts),
        *(batch, count, width, taps, triton.cdiv(steps, chunks), levels, level, of_x, STEP, CHANNELS, _group(taps)),
        maxnreg=OF_FLOAT64 if parts.dtype == torch.float64 else REGISTERS,
    )
    return parts[2 * chunks :]


def _chunks(signal: torch.Tensor, taps: int, count: int) -> int:
    """Programs that share a level's `count` rows of a band of all samples."""
    groups, blocks = _blocks(taps, signal.shape[2])
    return min(len(signal) * triton.cdiv(count, STEP), triton.cdiv(PROGRAMS, groups * blocks))


def _blocks(taps: int, width: int) -> tuple[int, int]:
    """Blocks of taps, and of channels."""
    return triton.cdiv(taps, _group(taps)), triton.cdiv(width, CHANNELS)


def _group(taps: int) -> int:
    """Taps of a program."""
    return min(triton.next_power_of_2(taps), TAPS)


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
    steps,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    OF_X: tl.constexpr,
    STEP: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Some steps of both bands' rows, some taps and channels."""
    chunk, group, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    # A thread has some channels of one row of a band and all of the program's taps.
    turn = tl.arange(0, STEP)[:, None, None]
    tap = (group * TAPS + tl.arange(0, TAPS))[None, :, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, None, :]
    of_sample = tl.cdiv(count, STEP)
    lows = tl.zeros((STEP, TAPS, CHANNELS), parts.dtype.element_ty)
    highs = tl.zeros((STEP, TAPS, CHANNELS), parts.dtype.element_ty)
    for number in range(chunk * steps, tl.minimum((chunk + 1) * steps, batch * of_sample)):
        sample = (number // of_sample).to(tl.int64)
        begin = number % of_sample * STEP
        period, valid = extent(lengths, positions, sample, LEVELS, LEVEL - 1, OF_X)
        has_end = (begin + STEP) * 2 + (group + 1) * TAPS > period
        t = begin + turn
        row = around(t * 2 + tap, period, has_end)
        inside = (t * 2 < period) & (channel < width)
        near = rows + sample * rows_sample + row * rows_row + channel
        near = exact(tl.load(near, inside & (row < valid), 0)).to(lows.dtype)
        lows += exact(tl.load(low + sample * low_sample + t * low_row + channel, inside, 0)).to(lows.dtype) * near
        highs += exact(tl.load(high + sample * high_sample + t * high_row + channel, inside, 0)).to(lows.dtype) * near
    tap = (group * TAPS + tl.arange(0, TAPS))[:, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    known = (tap < taps) & (channel < width)
    tl.store(parts + (chunk * taps + tap) * width + channel, tl.sum(lows, 0), known)
    of_high = tl.sum(highs, 0) * (1 - 2 * (tap % 2))
    tl.store(parts + ((chunks + chunk) * taps + taps - 1 - tap) * width + channel, of_high, known)
