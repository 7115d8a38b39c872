"""Calls of the wavelets that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..bands.layout import period_of
from ..common.proof_inputs import ragged, specialised

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    width: int
    taps: int
    levels: int
    ragged: bool


# Operation -> the form of a base model.
TYPICAL = {
    name: Form(torch.float32, specialised(768), 16, 1, True) for name in ("wavelet_analysis", "wavelet_synthesis")
}


def form(rows, filters, levels, *more) -> Form:
    """The form of a call of analysis or synthesis."""
    return Form(rows.dtype, specialised(int(rows.shape[-1])), int(filters.shape[0]), int(levels), more[-1] is not None)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values."""
    analysis = operation == "wavelet_analysis"
    shape = (BATCH, positions) if analysis else (BATCH * period_of(positions, form.levels),)
    rows = torch.randn(*shape, form.width, generator=generator) * (100 if hard else 1)
    filters = torch.randn(form.taps, form.width, generator=generator) / form.taps**0.5
    lengths = ragged(BATCH, positions) if form.ragged else None
    return rows, filters, form.levels, *(() if analysis else (BATCH, positions)), lengths
