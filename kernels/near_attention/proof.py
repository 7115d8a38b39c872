"""Calls of near_attention that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, dtypes_of, ragged

BATCH = 3
FAR = 30.0  # scores; exponentials of their differences leave fp32


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `dtypes`: those of the floating arguments, if they differ."""

    dtype: torch.dtype
    heads: int
    width: int
    channels: int
    places: int
    before: int
    ragged: bool
    documents: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"near_attention": Form(torch.float32, 12, 64, 64, 9, 4, True, False)}


def form(query, key, value, estimate, bias, share_logit, before, lengths, document_ids) -> Form:
    """The form of a call."""
    heads, width, channels, places = int(query.shape[1]), int(query.shape[3]), int(value.shape[3]), int(bias.shape[1])
    flags = lengths is not None, document_ids is not None
    dtypes = dtypes_of(value.dtype, query, key, value, estimate, bias, share_logit)
    return Form(value.dtype, heads, width, channels, places, before, *flags, dtypes)


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
    lengths = ragged(BATCH, positions) if form.ragged else None
    return query, key, value, estimate, bias, share_logit, form.before, lengths, ids
