"""Calls of random_feature_attention that share their compiled programs, and small hard inputs of each (proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, ragged

BATCH = 3
FAR = 4.0  # queries and keys; features of theirs leave fp32
WAVES = 5


class Form(NamedTuple):
    """What the programs are compiled for, and loop over."""

    dtype: torch.dtype
    heads: int
    features: int
    width: int
    channels: int
    causal: bool
    ragged: bool
    documents: bool
    waves: int
    places: bool


# Operation -> the form of a base model.
TYPICAL = {"random_feature_attention": Form(torch.float32, 12, 64, 64, 64, False, True, False, 1, False)}


def form(
    query,
    key,
    value,
    projection,
    waves,
    columns,
    places,
    lengths,
    causal,
    document_ids,
) -> Form:
    """The form of a call; its `waves` are 0 without, 1 for those of all samples, 2 for those of each."""
    kind = 0 if waves is None else 1 if waves.shape[0] == 1 else 2
    sizes = int(query.shape[1]), int(projection.shape[0]), int(query.shape[3]), int(value.shape[3])
    flags = bool(causal), lengths is not None, document_ids is not None
    return Form(value.dtype, *sizes, *flags, kind, places is not None)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: features whose exponentials leave fp32."""
    shape = BATCH, form.heads, positions
    query, key = torch.randn(2, *shape, form.width, generator=generator)
    if hard:
        query, key = FAR * query, FAR * key
    value = torch.randn(*shape, form.channels, generator=generator)
    projection = torch.randn(form.features, form.width, generator=generator)
    biases = [None] * 3
    if form.waves:
        biases[0] = torch.randn(BATCH if form.waves == 2 else 1, 1, positions, WAVES, generator=generator)
        biases[1] = torch.randn(2, form.heads, WAVES, form.features, generator=generator) / WAVES**0.5
    if form.places:
        biases[2] = torch.randint(0, positions, (BATCH, positions), generator=generator)
    ids = documents(BATCH, positions, generator) if form.documents else None
    lengths = ragged(BATCH, positions) if form.ragged else None
    return query, key, value, projection, *biases, lengths, form.causal, ids
