"""Calls of rotary_heads that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import dtypes_of

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `dtypes`: those of projected and angles, if they differ."""

    dtype: torch.dtype
    heads: int
    width: int
    samples_differ: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"rotary_heads": Form(torch.float32, 12, 64, False)}


def form(projected, cosine, sine) -> Form:
    """The form of a call."""
    counts = int(projected.shape[3]), int(projected.shape[4])
    return Form(projected.dtype, *counts, cosine.dim() == 4, dtypes_of(projected.dtype, projected, cosine, sine))


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values."""
    projected = torch.randn(BATCH, positions, 3, form.heads, form.width, generator=generator) * (100 if hard else 1)
    shape = (BATCH, 1, positions, form.width // 2) if form.samples_differ else (positions, form.width // 2)
    angles = 10 * torch.randn(shape, generator=generator)
    cosine, sine = angles.cos(), angles.sin()
    return projected, torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)
