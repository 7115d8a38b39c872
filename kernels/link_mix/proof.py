"""Calls of the links that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, ragged, specialised

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    width: int
    factors: int
    links: int
    wrap: bool


# Operation -> the form of a base model with 512 positions.
TYPICAL = {"link_mix": Form(torch.float32, specialised(768), 9, 19, True)}


def form(value, weights, offsets, lengths, wrap, document_ids) -> Form:
    """The form of a call."""
    return Form(value.dtype, specialised(int(value.shape[2])), int(weights.shape[2]), int(weights.shape[3]), bool(wrap))


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values in documents of many lengths."""
    value = torch.randn(BATCH, positions, form.width, generator=generator) * (100 if hard else 1)
    weights = torch.randn(BATCH, positions, form.factors, form.links, generator=generator) / (2 * form.links**0.5)
    # To both sides, further than any sequence, and to the same row twice.
    link = torch.arange(form.links)
    offsets = torch.where(link % 3 == 2, -1, 1) * 2 ** (link % 13)
    offsets[0] = 0
    offsets = (offsets + torch.arange(form.factors)[:, None] * (link > 0)).contiguous()
    ids = documents(BATCH, positions, generator) if hard else None
    return value, weights, offsets, ragged(BATCH, positions), form.wrap, ids
