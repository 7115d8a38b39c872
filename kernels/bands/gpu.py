"""Triton code of all periodised transforms: the extent of a sample's rows, and the gradient of taps.

Rows are given as views (B, rows, D) whose channels lie side by side. They hold the rows of a band, all of them up to
the period of their level, or rows of x, of which a sample may have fewer: `of_x` is "none", "all", "even" or "odd".
"""

import torch
import triton
from triton import language as tl

from ..common.grids import checked
from ..common.interpreter import interpreted

if interpreted():
    ROWS, CHANNELS, TAPS, CHUNKS = 16, 16, 4, 2
else:
    ROWS, CHANNELS, TAPS, CHUNKS = 32, 64, 8, 256


def lengths_of(x: torch.Tensor, positions: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """(B,) int64 of the batch x, all positions where there are none."""
    return torch.full((len(x),), positions, device=x.device) if lengths is None else lengths.contiguous()


def grid(rows: int, x: torch.Tensor) -> tuple[int, int, int]:
    """Programs for each block of so many rows and of the channels of each sample of x (B, N, D)."""
    return checked(triton.cdiv(rows, ROWS), triton.cdiv(x.shape[2], CHANNELS), len(x))


@triton.jit
def extent(lengths, sample, LEVELS: tl.constexpr, DEPTH: tl.constexpr, OF_X: tl.constexpr):
    """Period n' / 2^DEPTH of a sample's rows, and how many of them there are in what OF_X says."""
    length = tl.load(lengths + sample).to(tl.int32)
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
        counts: rows of each call's signal.
    """
    parts = sum(_chunks(len(signal), count) for count in counts)
    return signal.new_empty(parts, taps, signal.shape[2], dtype=torch.promote_types(signal.dtype, torch.float32))


def correlate_into(
    parts: torch.Tensor,
    signal: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    levels: int,
    level: int,
    step: int = 1,
    of_x: str = "none",
    mirrored: bool = False,
) -> torch.Tensor:
    """sum over samples b and rows t of signal[b, t] rows[b, (step t + tap) mod period], (taps, D), by parts of them.

    They are put into the first of `parts`; the rest of these is given back.

    Args:
        signal: (B, .., D), rows of a level's band.
        rows: (B, .., D); with a step of 2 those of the level before.
        lengths: (B,).
        step: between the rows of one tap.
        of_x: what `rows` hold.
        mirrored: tap l is put in the place of tap T - 1 - l, with the sign (-1)^l, as high-pass taps are made.
    """
    batch, count, width = signal.shape
    blocks, chunks, taps = batch * triton.cdiv(count, ROWS), _chunks(batch, count), parts.shape[1]
    _correlate[chunks, triton.cdiv(taps, TAPS), triton.cdiv(width, CHANNELS)](
        *(signal, *signal.stride()[:2], rows, *rows.stride()[:2], lengths, parts, batch, count, width, taps),
        *(step, mirrored, levels, level, of_x, triton.cdiv(blocks, chunks), ROWS, CHANNELS, TAPS),
    )
    return parts[chunks:]


def _chunks(batch: int, count: int) -> int:
    return min(batch * triton.cdiv(count, ROWS), CHUNKS)


@triton.jit
def _correlate(
    signal,
    signal_sample,
    signal_row,
    rows,
    rows_sample,
    rows_row,
    lengths,
    parts,
    batch,
    count,
    width,
    taps,
    STEP: tl.constexpr,
    MIRRORED: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVEL: tl.constexpr,
    OF_X: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
):
    """One chunk of BLOCKS blocks of rows, some taps and channels."""
    chunk, group = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    tap = group * TAPS + tl.arange(0, TAPS)
    of_sample = tl.cdiv(count, ROWS)
    total = tl.zeros((TAPS, CHANNELS), parts.dtype.element_ty)
    for number in range(chunk * BLOCKS, tl.minimum((chunk + 1) * BLOCKS, batch * of_sample)):
        sample = (number // of_sample).to(tl.int64)
        t = number % of_sample * ROWS + tl.arange(0, ROWS)
        period, valid = extent(lengths, sample, LEVELS, LEVEL - STEP + 1, OF_X)
        exists = t * STEP < period
        place = signal + sample * signal_sample + t[:, None] * signal_row + channel
        value = tl.load(place, exists[:, None] & (channel < width), 0).to(total.dtype)
        around = tl.maximum(period, 1)
        row = (t[:, None] * STEP + tap) % around
        place = rows + sample * rows_sample + row[:, :, None] * rows_row + channel
        there = exists[:, None] & (row < valid) & (tap < taps)
        near = tl.load(place, there[:, :, None] & (channel < width), 0).to(total.dtype)
        total += tl.sum(value[:, None, :] * near, 0)
    to = tap
    if MIRRORED:
        total *= (1 - 2 * (tap % 2))[:, None]
        to = taps - 1 - tap
    place = parts + (chunk * taps + to[:, None]) * width + channel
    tl.store(place, total, (tap < taps)[:, None] & (channel < width))
