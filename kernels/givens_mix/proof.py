"""Calls of the rotations that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import dtypes_of, ragged
from .chunks import CHUNK, SHORT, in_planes, is_long

BATCH = 3
FAR = 5e3  # the size of hard phases


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `long`: of many chunks; `dtypes`: those of value, angles and
    phase, if they differ.
    """

    dtype: torch.dtype
    heads: int
    width: int
    orders: int
    permuted: bool
    planes: bool
    without_own: bool
    ragged: bool
    long: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"givens_mix": Form(torch.float32, 24, 32, 1, False, True, True, True, False)}


def form(value, upper, lower, phase, lengths, permutation, without_own) -> Form:
    """The form of a call."""
    heads, width, orders = int(value.shape[2]), int(value.shape[3]), int(upper.shape[2])
    flags = permutation is not None, in_planes(value), without_own, lengths is not None
    long = is_scanned_long(value.shape[1], orders, permutation)
    return Form(value.dtype, heads, width, orders, *flags, long, dtypes_of(value.dtype, value, upper, lower, phase))


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: angles at multiples of pi / 2, phases of many turns."""
    positions = long_enough(form.long, positions)
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


def is_scanned_long(positions: int, orders: int, permutation: torch.Tensor | None) -> bool:
    """Whether a scan goes over many chunks: several orders, and permutations, are swept without one."""
    return is_long(positions) and orders == 1 and permutation is None


def long_enough(long: bool, positions: int) -> int:
    """Positions of a proof's inputs, of many chunks where a form says so."""
    return positions + CHUNK * SHORT[0] if long else positions
