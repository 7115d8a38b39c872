"""Calls of rotary_heads that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    heads: int
    width: int
    samples_differ: bool

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those of projected and of the angles, which are wide."""
        wide = torch.promote_types(self.dtype, torch.float32)
        return self.dtype, wide, wide


# Operation -> the form of a base model.
TYPICAL = {"rotary_heads": Form(torch.float32, 12, 64, False)}


def form(projected, cosine, sine) -> Form:
    """The form of a call."""
    return Form(projected.dtype, int(projected.shape[3]), int(projected.shape[4]), cosine.dim() == 4)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values."""
    projected = torch.randn(BATCH, positions, 3, form.heads, form.width, generator=generator) * (100 if hard else 1)
    shape = (BATCH, 1, positions, form.width // 2) if form.samples_differ else (positions, form.width // 2)
    angles = 10 * torch.randn(shape, generator=generator)
    cosine, sine = angles.cos(), angles.sin()
    return projected, torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)
