"""Calls of the rotations that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import dtypes_of, ragged
from .chunks import CHUNK, SCANS, in_planes, scan_of

BATCH = 3
FAR = 5e3  # the size of hard phases


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `scan`: over how many chunks at once; `dtypes`: those of
    value, angles and phase, if they differ.
    """

    dtype: torch.dtype
    heads: int
    width: int
    orders: int
    permuted: bool
    planes: bool
    without_own: bool
    ragged: bool
    scan: int
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"givens_mix": Form(torch.float32, 24, 32, 1, False, True, True, True, SCANS[0][0])}


def form(value, upper, lower, phase, lengths, permutation, without_own) -> Form:
    """The form of a call."""
    heads, width, orders = int(value.shape[2]), int(value.shape[3]), int(upper.shape[2])
    flags = permutation is not None, in_planes(value), without_own, lengths is not None
    scan = scanned(value.shape[1], orders, permutation)
    return Form(value.dtype, heads, width, orders, *flags, scan, dtypes_of(value.dtype, value, upper, lower, phase))


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: angles at multiples of pi / 2, phases of many turns."""
    positions = long_enough(form.scan, positions)
    value = torch.randn(BATCH, positions, form.heads, form.width, 2, generator=generator)
    if form.planes:
        value = value.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    angles = BATCH, form.heads, form.orders, positions - 1, 3
    upper, lower = (2 * torch.randn(angles, generator=generator) for _ in range(2))
    phase = 2 * torch.randn(BATCH, form.heads, positions, generator=generator)
    if hard:
        upper, lower = ((2 * x).round() * (torch.pi / 2) for x in (upper, lower))
        phase = FAR * phase
    order = torch.rand(form.orders, positions, generator=generator).argsort(-1) if form.permuted else None
    lengths = ragged(BATCH, positions) if form.ragged else None
    return value, upper, lower, phase, lengths, order, form.without_own


def scanned(positions: int, orders: int, permutation: torch.Tensor | None) -> int:
    """How many chunks a scan takes at once; several orders, and permutations, are swept without one."""
    return scan_of(positions)[0] if orders == 1 and permutation is None else SCANS[0][0]


def long_enough(scan: int, positions: int) -> int:
    """Positions of a proof's inputs, of as many chunks as a form's scan is for."""
    return positions + CHUNK * (scan // 2) if scan > SCANS[0][0] else positions
