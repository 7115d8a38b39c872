"""Calls of the attentions that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

import functools
from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, dtypes_of, ragged
from .inputs import working_dtype
from .pieces import PIECE, PROGRAMS, channels_of, pieces_of

BATCH = 3
LONG = 2 * PIECE  # positions more than others have where heads are cut into pieces
FAR = 50.0  # logarithms of features; the exponential of two together leaves fp32


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `cut`: a program has a piece of a head's rows; `dtypes`: those
    of features and values, if they differ.
    """

    dtype: torch.dtype
    heads: int
    features: int
    width: int
    causal: bool
    ragged: bool
    documents: bool
    cut: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {
    "feature_attention": Form(torch.float32, 12, 64, 64, False, True, False, True),
    "linear_attention": Form(torch.float32, 12, 64, 64, False, True, False, True),
}


def form(query, key, value, lengths, causal, document_ids) -> Form:
    """The form of a call."""
    heads, features, width = int(query.shape[1]), int(query.shape[3]), int(value.shape[3])
    flags = bool(causal), lengths is not None, document_ids is not None
    cut = is_cut(value, features, working_dtype(query, key, value))
    return Form(value.dtype, heads, features, width, *flags, cut, dtypes_of(value.dtype, query, key, value))


def is_cut(value: torch.Tensor, features: int, working: torch.dtype) -> bool:
    """Whether programs have pieces of a head's rows."""
    batch, heads, positions, width = value.shape
    return pieces_of(batch * heads * _blocks(features, width, working), positions) > 1


def sizes(form, features: int, width: int, positions: int) -> tuple[int, int]:
    """Samples and positions of a proof's inputs, for a form that says of heads whether they are `cut`."""
    working = functools.reduce(torch.promote_types, (form.dtype, *form.dtypes), torch.float32)
    heads = form.heads * _blocks(features, width, working)
    if form.cut:  # more heads would keep a card busy as they are
        return min(BATCH, (PROGRAMS - 1) // heads), positions + LONG
    return BATCH if positions <= PIECE else max(BATCH, -(-PROGRAMS // heads)), positions


def _blocks(features: int, width: int, working: torch.dtype) -> int:
    return -(-width // channels_of(features, width, working.itemsize))


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: logarithms of +-50, or a head whose keys are all zero."""
    batch, positions = sizes(form, form.features, form.width, positions)
    shape = batch, form.heads, positions
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
    ids = documents(batch, positions, generator) if form.documents else None
    return query, key, value, ragged(batch, positions) if form.ragged else None, form.causal, ids
