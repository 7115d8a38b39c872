"""Converter's product of Givens rotations in Triton.

One order without a permutation, what models have by default, goes through all sweeps chunk by chunk (programs_gpu.py);
several orders, and permutations, go through one sweep after the other (sweeps_gpu.py).
"""

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from . import chunks
from .angles_gpu import angle_gradients, make_tables
from .programs_gpu import find_inflows, find_terms, mix_chunks, unmix_chunks
from .sweeps_gpu import givens_mix, givens_mix_backward

__all__ = ["givens_mix", "givens_mix_backward", "givens_mix_chunked", "givens_mix_chunked_backward"]

CHANNELS, WARPS, REGISTERS = 16 if interpreted() else 32, 4, 255
# Chunks and channels of a block of the scan.
SCANNED, SCANNED_CHANNELS = (2 if interpreted() else 32), 4
# Rows of a block of angles.
TILE = 16 if interpreted() else 256
# Programs of a launch over angles, where rows can be shared: two for each multiprocessor of the largest of our cards.
PROGRAMS = 6 if interpreted() else 264
LAYOUT = {"TABLES": chunks.TABLES, "INFLOWS": chunks.INFLOWS}


def givens_mix_chunked(value, upper, lower, phase, lengths, planes, without_own):
    """All stages of one order; see operator.py."""
    layout = _Layout(value, lengths, planes)
    tables, inflows, couplings = chunks.kept_of(value, layout.heads)
    share, shares = _shares(layout.count, layout.rows)
    strides = [upper.stride(axis) for axis in (0, 1, 3, 4)] + [lower.stride(axis) for axis in (0, 1, 3, 4)]
    make_tables[checked(layout.count, shares)](
        *(upper, lower, phase, layout.lengths, tables, layout.positions, layout.heads, layout.rows, share),
        *(*strides, *phase.stride()),
        TILE=TILE,
        TABLES=chunks.TABLES,
        maxnreg=REGISTERS,
    )
    _find_inflows(layout, value, tables, couplings, inflows, forward=True)
    result = torch.empty_like(value)
    mix_chunks[layout.grid](
        *(value, result, tables, inflows, layout.lengths, *layout.sizes),
        WITHOUT_OWN=without_own,
        **layout.constants,
    )
    return result, tables, inflows, couplings


def givens_mix_chunked_backward(gradient, value, lengths, tables, inflows, couplings, planes, without_own):
    """Gradients of value, upper, lower and phase; see operator.py."""
    layout = _Layout(value, lengths, planes)
    of_inflows = torch.empty_like(inflows)
    _find_inflows(layout, gradient, tables, couplings, of_inflows, forward=False)
    of_value = torch.empty_like(value)
    sums = tables.new_empty(layout.grid[2], *layout.pairs, chunks.ANGLES, layout.rows)
    unmix_chunks[layout.grid](
        *(value, gradient, of_value, sums, tables, inflows, of_inflows, layout.lengths, *layout.sizes),
        WITHOUT_OWN=without_own,
        ANGLES=chunks.ANGLES,
        **layout.constants,
    )
    angles = *layout.pairs, 1, layout.positions - 1, 3
    of_angles = [tables.new_empty(size) for size in (angles, angles, (*layout.pairs, layout.positions))]
    share, shares = _shares(layout.count, layout.positions)
    angle_gradients[checked(layout.count, shares)](
        *(sums, layout.lengths, *of_angles, layout.heads, layout.positions, layout.rows, share),
        BLOCKS=layout.grid[2],
        TILE=TILE,
        ANGLES=chunks.ANGLES,
    )
    return of_value, *of_angles


class _Layout:
    """Sizes and strides of a value (B, N, H, d, 2), or (B, N, 2, H, d) in planes, and what every launch is given."""

    def __init__(self, value: torch.Tensor, lengths: torch.Tensor | None, planes: bool):
        batch, self.positions = value.shape[:2]
        self.heads, self.width = value.shape[3:] if planes else value.shape[2:4]
        self.lengths, self.pairs, self.count = lengths, (batch, self.heads), batch * self.heads
        self.chunks, self.rows = chunks.chunks_of(self.positions), chunks.rows_of_tables(self.positions)
        strides = (self.width, 1, self.heads * self.width) if planes else (2 * self.width, 2, 1)
        self.sizes = (self.positions, self.heads, self.width, self.rows, *strides)
        self.grid = checked(self.count, self.chunks, triton.cdiv(self.width, CHANNELS))
        self.constants = {
            **LAYOUT,
            "CHUNK": chunks.CHUNK,
            "CHANNELS": CHANNELS,
            "num_warps": WARPS,
            "maxnreg": REGISTERS,
        }


def _find_inflows(layout: _Layout, value, tables, couplings, inflows, forward: bool) -> None:
    """Write what is handed into each chunk of values, (B, H, inflows, chunks, d, 2); the first pass finds the couplings
    too.

    Backward the values are gradients, and the eigenvalues' phases have the opposite sign.
    """
    terms = torch.empty_like(inflows)
    find_terms[layout.grid](
        *(value, tables, terms, couplings, layout.lengths, 1 if forward else -1, *layout.sizes),
        COUPLED=forward,
        COUPLINGS=chunks.COUPLINGS,
        **layout.constants,
    )
    find_inflows[checked(layout.count, triton.cdiv(layout.width, SCANNED_CHANNELS))](
        *(terms, inflows, couplings, tables, layout.chunks, layout.width, layout.rows),
        CONJUGATE=not forward,
        ROWS=SCANNED,
        CHANNELS=SCANNED_CHANNELS,
        COUPLINGS=chunks.COUPLINGS,
        **LAYOUT,
    )


def _shares(pairs: int, rows: int) -> tuple[int, int]:
    """Rows of a share, whole blocks, and how many shares there are."""
    wanted = triton.cdiv(rows, triton.cdiv(PROGRAMS, pairs))
    share = TILE * triton.cdiv(wanted, TILE)
    return share, triton.cdiv(rows, share)
