"""Calls of the attentions that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, ragged

BATCH = 3
FAR = 50.0  # logarithms of features; the exponential of two together leaves fp32


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    heads: int
    features: int
    width: int
    causal: bool
    ragged: bool
    documents: bool


# Operation -> the form of a base model.
TYPICAL = {
    "feature_attention": Form(torch.float32, 12, 64, 64, False, True, False),
    "linear_attention": Form(torch.float32, 12, 64, 64, False, True, False),
}


def form(query, key, value, lengths, causal, document_ids) -> Form:
    """The form of a call."""
    heads, features, width = int(query.shape[1]), int(query.shape[3]), int(value.shape[3])
    return Form(value.dtype, heads, features, width, bool(causal), lengths is not None, document_ids is not None)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: logarithms of +-50, or a head whose keys are all zero."""
    shape = BATCH, form.heads, positions
    query, key = torch.randn(2, *shape, form.features, generator=generator)
    if operation == "linear_attention":
        query, key = query.relu(), key.relu()
        if hard:
            key[:, 0] = 0.0
        else:
            query, key = query + 0.01, key + 0.01
    elif hard:
        query, key = (x + FAR * x.sign() for x in (query, key))
    value = torch.randn(*shape, form.width, generator=generator)
    ids = documents(BATCH, positions, generator) if form.documents else None
    return query, key, value, ragged(BATCH, positions) if form.ragged else None, form.causal, ids
