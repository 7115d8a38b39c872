"""Calls of the links that share their compiled programs, and small hard inputs of each (kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import documents, dtypes_of, ragged, specialised
from .slabs import channels_of, fewest_positions, rows_of

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `slab` and `rows`: channels of a program, and rows
    of its block; `dtypes`: those of value and weights, if they differ.
    """

    dtype: torch.dtype
    width: int
    factors: int
    links: int
    wrap: bool
    slab: int
    rows: int
    ragged: bool
    documents: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model with 512 positions.
TYPICAL = {"link_mix": Form(torch.float32, specialised(768), 9, 19, True, 16, 512, True, False)}


def form(value, weights, offsets, lengths, wrap, document_ids) -> Form:
    """The form of a call."""
    return Form(
        value.dtype,
        specialised(int(value.shape[2])),
        *(int(size) for size in weights.shape[2:]),
        bool(wrap),
        channels_of(int(value.shape[1]), value.element_size(), document_ids is not None),
        rows_of(int(value.shape[1])),
        lengths is not None,
        document_ids is not None,
        dtypes_of(value.dtype, value, weights),
    )


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values.

    There are more positions where such slabs belong to longer samples.
    """
    positions += fewest_positions(form.slab, form.dtype.itemsize, form.rows)
    value = torch.randn(BATCH, positions, form.width, generator=generator) * (100 if hard else 1)
    weights = torch.randn(BATCH, positions, form.factors, form.links, generator=generator) / (2 * form.links**0.5)
    # To both sides, further than any sequence, and to the same row twice.
    link = torch.arange(form.links)
    offsets = torch.where(link % 3 == 2, -1, 1) * 2 ** (link % 13)
    offsets[0] = 0
    offsets = (offsets + torch.arange(form.factors)[:, None] * (link > 0)).contiguous()
    ids = documents(BATCH, positions, generator) if form.documents else None
    return value, weights, offsets, ragged(BATCH, positions) if form.ragged else None, form.wrap, ids
