"""Calls of random_feature_attention that share their compiled programs, and small hard inputs of each (proving.py)."""

from typing import NamedTuple

import torch

from ..attention.inputs import working_dtype
from ..attention.proof import is_cut, sizes
from ..common.proof_inputs import documents, dtypes_of, ragged

FAR = 4.0  # queries and keys; features of theirs leave fp32
WAVES = 5


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `cut`: as for `feature_attention`; `apart`: values lie between
    other rows; `dtypes`: those of queries, keys and values, if they differ.
    """

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
    cut: bool
    apart: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"random_feature_attention": Form(torch.float32, 12, 64, 64, 64, False, True, False, 1, False, True, True)}


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
    counts = int(query.shape[1]), int(projection.shape[0]), int(query.shape[3]), int(value.shape[3])
    flags = bool(causal), lengths is not None, document_ids is not None
    cut = is_cut(value, counts[1], working_dtype(query, key, value))
    layout = cut, not value.is_contiguous()
    return Form(
        value.dtype, *counts, *flags, kind, places is not None, *layout, dtypes_of(value.dtype, query, key, value)
    )


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: features whose exponentials leave fp32."""
    batch, positions = sizes(form, form.features, form.channels, positions)
    shape = batch, form.heads, positions
    query, key = torch.randn(2, *shape, form.width, generator=generator)
    if hard:
        query, key = FAR * query, FAR * key
    value = torch.randn(*shape, form.channels, generator=generator)
    if form.apart:
        value = torch.stack([value, value]).permute(1, 3, 0, 2, 4).contiguous()[:, :, 0].transpose(1, 2)
    projection = torch.randn(form.features, form.width, generator=generator)
    biases = [None] * 3
    if form.waves:
        biases[0] = torch.randn(batch if form.waves == 2 else 1, 1, positions, WAVES, generator=generator)
        biases[1] = torch.randn(2, form.heads, WAVES, form.features, generator=generator) / WAVES**0.5
    if form.places:
        biases[2] = torch.randint(0, positions, (batch, positions), generator=generator)
    ids = documents(batch, positions, generator) if form.documents else None
    lengths = ragged(batch, positions) if form.ragged else None
    return query, key, value, projection, *biases, lengths, form.causal, ids
