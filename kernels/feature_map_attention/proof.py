"""Calls of feature_map_attention that share their compiled programs, and small hard inputs of each (proving.py)."""

from typing import NamedTuple

import torch

from ..attention.inputs import working_dtype
from ..attention.proof import is_cut, sizes
from ..common.proof_inputs import dtypes_of, ragged

FAR = 30.0  # queries and keys; features of theirs leave half precision


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `cut`: as for `linear_attention`; `apart`: values lie between
    other rows; `dtypes`: those of queries, keys and values, if they differ.
    """

    dtype: torch.dtype
    heads: int
    width: int
    channels: int
    feature_map: str
    ragged: bool
    cut: bool
    apart: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model.
TYPICAL = {"feature_map_attention": Form(torch.float32, 12, 64, 64, "elu", True, True, True)}


def form(query, key, value, feature_map, lengths) -> Form:
    """The form of a call."""
    counts = int(query.shape[1]), int(query.shape[3]), int(value.shape[3])
    layout = is_cut(value, counts[1], working_dtype(query, key, value)), not value.is_contiguous()
    dtypes = dtypes_of(value.dtype, query, key, value)
    return Form(value.dtype, *counts, feature_map, lengths is not None, *layout, dtypes)


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: features that are very small and very large."""
    batch, positions = sizes(form, form.width, form.channels, positions)
    shape = batch, form.heads, positions
    query, key = torch.randn(2, *shape, form.width, generator=generator) * (FAR if hard else 1.0)
    value = torch.randn(*shape, form.channels, generator=generator)
    if form.apart:
        value = torch.stack([value, value]).permute(1, 3, 0, 2, 4).contiguous()[:, :, 0].transpose(1, 2)
    return query, key, value, form.feature_map, ragged(batch, positions) if form.ragged else None
