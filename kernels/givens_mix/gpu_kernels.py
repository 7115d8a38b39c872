"""Converter's product of Givens rotations in Triton.

One order without a permutation, what models have by default, goes through all sweeps chunk by chunk (programs_gpu.py);
several orders, and permutations, go through one sweep after the other (sweeps_gpu.py).
"""

from typing import NamedTuple

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from ..common.tensor_cores import multiply_tf32
from . import chunks
from .angles_gpu import angle_gradients, make_tables
from .programs_gpu import find_inflows, find_terms, mix_chunks, unmix_chunks
from .sweeps_gpu import givens_mix, givens_mix_backward

__all__ = ["givens_mix", "givens_mix_backward", "givens_mix_chunked", "givens_mix_chunked_backward"]

# Channels of a program forward and backward, and its threads by 32. One warp waits for no other: on an H200 it is
# faster even where it spills. On cards before A100, without tensor cores for fp32, it would spill more.
FORWARD, BACKWARD, BEFORE_A100, INTERPRETED = (32, 1), (16, 1), (32, 4), (16, 1)
REGISTERS = 255
# Chunks by channels that 32 threads of the scan have.
OF_A_WARP = 8 if interpreted() else 256
# Rows of a block of angles.
TILE = 16 if interpreted() else 256
# Programs of a launch over angles, where rows can be shared: two for each multiprocessor of the largest of our cards.
PROGRAMS = 6 if interpreted() else 264
LAYOUT = {"TABLES": chunks.TABLES, "INFLOWS": chunks.INFLOWS}


class Drawn(NamedTuple):
    """What makes the angles of one order of what a linear head has drawn: see angles_gpu.py; nothing where they are
    given. Coefficients (H, count), and the rest contiguous too.
    """

    centres: torch.Tensor | None = None
    ranges: torch.Tensor | None = None
    coefficients: torch.Tensor | None = None
    begins: torch.Tensor | None = None
    turns: torch.Tensor | None = None

    def count(self) -> int:
        """Coefficients of a head."""
        return 0 if self.coefficients is None else self.coefficients.shape[1]


def givens_mix_chunked(value, upper, lower, phase, lengths, planes, without_own):
    """All stages of one order; see operator.py."""
    strides = [angles.stride(axis) for angles in (upper, lower) for axis in (0, 1, 3, 4)]
    return mix((upper, lower, phase), [*strides, *phase.stride()], Drawn(), value, lengths, planes, without_own)


def givens_mix_chunked_backward(gradient, value, lengths, tables, inflows, couplings, planes, without_own):
    """Gradients of value, upper, lower and phase; see operator.py."""
    (batch, positions), heads = value.shape[:2], tables.shape[1]
    angles = batch, heads, 1, positions - 1, 3
    of_angles = [tables.new_empty(size) for size in (angles, angles, (batch, heads, positions))]
    strides = [found.stride(axis) for found in of_angles[:2] for axis in (0, 1, 3)] + [*of_angles[2].stride()]
    arguments = gradient, value, lengths, tables, inflows, couplings, planes, without_own
    of_value, _ = unmix(of_angles, strides, Drawn(), *arguments)
    return of_value, *of_angles


def mix(angles, strides, drawn: Drawn, value, lengths, planes, without_own):
    """The result, tables, inflows and couplings.

    Args:
        angles: upper, lower and phase, or three times what was drawn.
        strides: those of their samples, heads, rows and, but of the phase, parts.
    """
    layout = _Layout(value, lengths, planes)
    tables, inflows, couplings = chunks.kept_of(value, layout.heads)
    share, shares = _shares(layout.count, layout.rows)
    make_tables[checked(layout.count, shares)](
        *(*angles, *drawn[:4], layout.lengths, tables, drawn.turns, layout.positions, layout.heads, layout.rows, share),
        *(drawn.count(), *strides),
        TILE=TILE,
        TABLES=chunks.TABLES,
        maxnreg=REGISTERS,
    )
    _find_inflows(layout, value, tables, couplings, inflows, forward=True)
    result = torch.empty_like(value)
    mix_chunks[layout.grid(layout.forward)](
        *(value, result, tables, inflows, layout.lengths, *layout.sizes),
        WITHOUT_OWN=without_own,
        **layout.constants(layout.forward),
    )
    return result, tables, inflows, couplings


def unmix(
    of_angles,
    strides,
    drawn: Drawn,
    gradient,
    value,
    lengths,
    tables,
    inflows,
    couplings,
    planes,
    without_own,
):
    """Gradients of value and coefficients (None without any), those of the angles into `of_angles`.

    Args:
        of_angles: those of upper, lower and phase, or three times that of what was drawn.
        strides: those of their samples, heads and rows.
    """
    layout = _Layout(value, lengths, planes)
    of_inflows = torch.empty_like(inflows)
    _find_inflows(layout, gradient, tables, couplings, of_inflows, forward=False)
    of_value = torch.empty_like(value)
    grid = layout.grid(layout.backward)
    sums = tables.new_empty(grid[2], *layout.pairs, chunks.ANGLES, layout.rows)
    unmix_chunks[grid](
        *(value, gradient, of_value, sums, tables, inflows, of_inflows, layout.lengths, *layout.sizes),
        WITHOUT_OWN=without_own,
        ANGLES=chunks.ANGLES,
        **layout.constants(layout.backward),
    )
    share, shares = _shares(layout.count, layout.positions)
    count, parts = drawn.count(), None
    if count:
        parts = drawn.turns.new_empty(shares, *layout.pairs, count)
    angle_gradients[checked(layout.count, shares)](
        *(sums, layout.lengths, *of_angles, drawn.ranges, drawn.coefficients, drawn.begins, drawn.turns, parts),
        *(layout.heads, layout.positions, layout.rows, share, count, *strides),
        BLOCKS=grid[2],
        TILE=TILE,
        ANGLES=chunks.ANGLES,
        TERMS=max(4, triton.next_power_of_2(count)),
        maxnreg=REGISTERS,
    )
    return of_value, None if parts is None else parts.sum((0, 1))


class _Layout:
    """Sizes and strides of a value (B, N, H, d, 2), or (B, N, 2, H, d) in planes, and what every launch is given."""

    def __init__(self, value: torch.Tensor, lengths: torch.Tensor | None, planes: bool):
        batch, self.positions = value.shape[:2]
        self.heads, self.width = value.shape[3:] if planes else value.shape[2:4]
        self.lengths, self.pairs, self.count = lengths, (batch, self.heads), batch * self.heads
        self.chunks, self.rows = chunks.chunks_of(self.positions), chunks.rows_of_tables(self.positions)
        self.forward, self.backward = _programs()
        strides = (self.width, 1, self.heads * self.width) if planes else (2 * self.width, 2, 1)
        self.sizes = (self.positions, self.heads, self.width, self.rows, *strides)

    def grid(self, of_program: tuple[int, int]) -> tuple[int, ...]:
        """Programs for heads, chunks and blocks of channels."""
        return checked(self.count, self.chunks, triton.cdiv(self.width, of_program[0]))

    def constants(self, of_program: tuple[int, int]) -> dict[str, int]:
        """Of such a launch."""
        channels, warps = of_program
        return {**LAYOUT, "CHUNK": chunks.CHUNK, "CHANNELS": channels, "num_warps": warps, "maxnreg": REGISTERS}


def _programs() -> tuple[tuple[int, int], tuple[int, int]]:
    """Of launches forward and backward."""
    if interpreted():
        return INTERPRETED, INTERPRETED
    return (FORWARD, BACKWARD) if multiply_tf32() else (BEFORE_A100, BEFORE_A100)


def _find_inflows(layout: _Layout, value, tables, couplings, inflows, forward: bool) -> None:
    """Write what is handed into each chunk of values, (B, H, inflows, chunks, d, 2); the first pass finds the couplings
    too.

    Backward the values are gradients, and the eigenvalues' phases have the opposite sign.
    """
    terms = torch.empty_like(inflows)
    find_terms[layout.grid(layout.forward)[:2]](
        *(value, tables, terms, couplings, layout.lengths, 1 if forward else -1, *layout.sizes),
        COUPLED=forward,
        HALVES=value.itemsize == 2 and multiply_tf32(),
        COUPLINGS=chunks.COUPLINGS,
        **layout.constants(layout.forward),
    )
    rows, channels = chunks.scan_of(layout.positions)
    find_inflows[checked(layout.count, triton.cdiv(layout.width, channels))](
        *(terms, inflows, couplings, tables, layout.chunks, layout.width, layout.rows),
        CONJUGATE=not forward,
        ROWS=rows,
        CHANNELS=channels,
        COUPLINGS=chunks.COUPLINGS,
        **LAYOUT,
        num_warps=max(1, rows * channels // OF_A_WARP),
    )


def _shares(pairs: int, rows: int) -> tuple[int, int]:
    """Rows of a share, whole blocks, and how many shares there are."""
    wanted = triton.cdiv(rows, triton.cdiv(PROGRAMS, pairs))
    share = TILE * triton.cdiv(wanted, TILE)
    return share, triton.cdiv(rows, share)
