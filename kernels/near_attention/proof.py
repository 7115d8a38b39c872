"""Calls of near_attention that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, ragged

BATCH = 3
FAR = 30.0  # scores; exponentials of their differences leave fp32


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    heads: int
    width: int
    channels: int
    places: int
    before: int
    documents: bool


# Operation -> the form of a base model.
TYPICAL = {"near_attention": Form(torch.float32, 12, 64, 64, 9, 4, False)}


def form(query, key, value, estimate, bias, share_logit, before, lengths, document_ids) -> Form:
    """The form of a call."""
    heads, width, channels, places = int(query.shape[1]), int(query.shape[3]), int(value.shape[3]), int(bias.shape[1])
    return Form(value.dtype, heads, width, channels, places, before, document_ids is not None)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: scores that differ by up to a hundred."""
    shape = BATCH, positions, form.heads
    query, key = torch.randn(2, *shape, form.width, generator=generator).transpose(2, 3)
    value, estimate = torch.randn(2, *shape, form.channels, generator=generator).transpose(2, 3)
    bias = torch.randn(form.heads, form.places, generator=generator)
    share_logit = torch.randn(form.heads, generator=generator)
    if hard:
        bias = FAR * bias
    ids = documents(BATCH, positions, generator) if form.documents else None
    return query, key, value, estimate, bias, share_logit, form.before, ragged(BATCH, positions), ids
