"""Calls of the rotations of tokens that share their compiled programs, and small hard inputs of each
(kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import dtypes_of, ragged
from ..givens_mix.chunks import SCANS, in_planes
from ..givens_mix.proof import long_enough, scanned

BATCH = 3
FAR = 8  # the size of hard numbers, and how many times closer to a quarter turn their rotations are


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `terms`: coefficients of a head, 0 without; `scan`: over how
    many chunks at once; `dtypes`: those of the floating arguments, if they differ.
    """

    dtype: torch.dtype
    heads: int
    width: int
    orders: int
    permuted: bool
    planes: bool
    without_own: bool
    terms: int
    documents: bool
    ragged: bool
    scan: int
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"token_givens_mix": Form(torch.float32, 24, 32, 1, False, True, True, 3, False, True, SCANS[0][0])}


def form(value, drawn, coefficients, centres, ranges, begins, lengths, permutation, without_own) -> Form:
    """The form of a call."""
    heads, width, orders = int(value.shape[2]), int(value.shape[3]), int(drawn.shape[3]) // 6
    terms = 0 if coefficients is None else int(coefficients.shape[1])
    flags = permutation is not None, in_planes(value), bool(without_own)
    dtypes = dtypes_of(value.dtype, value, drawn, coefficients, centres, ranges)
    rest = begins is not None, lengths is not None, scanned(value.shape[1], orders, permutation)
    return Form(value.dtype, heads, width, orders, *flags, terms, *rest, dtypes)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: eigenvalues of many turns, rotations near a quarter."""
    positions = long_enough(form.scan, positions)
    value = torch.randn(BATCH, positions, form.heads, form.width, 2, generator=generator)
    if form.planes:
        value = value.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    count = 1 + 6 * form.orders
    drawn = torch.randn(BATCH, positions, form.heads, count, generator=generator)
    coefficients = torch.randn(form.heads, form.terms, generator=generator) if form.terms else None
    centres, ranges = torch.randn(2, form.heads, count, generator=generator)
    if hard:
        drawn[..., 0] *= FAR
        centres[:, 3::3], ranges[:, 3::3] = torch.pi / 2, 1 / FAR
    begins = torch.rand(BATCH, positions, generator=generator) < 0.2 if form.documents else None
    order = torch.rand(form.orders, positions, generator=generator).argsort(-1) if form.permuted else None
    lengths = ragged(BATCH, positions) if form.ragged else None
    return value, drawn, coefficients, centres, ranges, begins, lengths, order, form.without_own
