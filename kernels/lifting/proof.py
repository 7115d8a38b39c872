"""Calls of lifting that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..bands.layout import period_of
from ..common.proof_inputs import ragged, specialised

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; fixed steps have no taps."""

    dtype: torch.dtype
    width: int
    predict: int
    update: int
    levels: int
    ragged: bool


# Operation -> the form of a base model.
TYPICAL = {
    name: Form(torch.float32, specialised(768), 16, 16, 3, True) for name in ("lifting_analysis", "lifting_synthesis")
}


def form(rows, predict, update, levels, *more) -> Form:
    """The form of a call of analysis or synthesis."""
    taps = (0 if steps is None else int(steps.shape[0]) for steps in (predict, update))
    return Form(rows.dtype, specialised(int(rows.shape[-1])), *taps, int(levels), more[-1] is not None)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: rows that drive learned steps into their bends."""
    analysis = operation == "lifting_analysis"
    shape = (BATCH, positions) if analysis else (BATCH * period_of(positions, form.levels),)
    rows = torch.randn(*shape, form.width, generator=generator) * (40 if hard else 1)
    steps = [
        torch.randn(taps, form.width, generator=generator) / taps**0.5 if taps else None
        for taps in (form.predict, form.update)
    ]
    lengths = ragged(BATCH, positions) if form.ragged else None
    return rows, *steps, form.levels, *(() if analysis else (BATCH, positions)), lengths
