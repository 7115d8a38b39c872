"""Calls of the Fourier convolution that share their compiled programs, and small hard inputs of each
(kernels/proving.py)."""

from typing import NamedTuple

import torch

from ..common.proof_inputs import dtypes_of, ragged

BATCH = 3


class Form(NamedTuple):
    """What the programs are compiled for, and loop over; `width`: channels of a segment. `short`: there are fewer
    positions than half of n_fft; `even`: n_fft is; `dtypes`: those of x and spectrum, if they differ.
    """

    dtype: torch.dtype
    segments: int
    width: int
    short: bool
    even: bool
    ragged: bool
    beside: bool
    dtypes: tuple[torch.dtype, ...] = ()


# Operation -> the form of a base model with as many positions as n_fft.
TYPICAL = {"spectral_filter": Form(torch.float32, 8, 96, False, True, True, True)}


def form(x, spectrum, n_fft, segments, lengths, beside) -> Form:
    """The form of a call."""
    positions, features = (int(size) for size in x.shape[1:])
    return Form(
        x.dtype,
        int(segments),
        features // int(segments),
        2 * positions < n_fft,
        n_fft % 2 == 0,
        lengths is not None,
        bool(beside),
        dtypes_of(x.dtype, x, spectrum),
    )


def inputs(operation: str, form: Form, positions: int, hard: bool, generator: torch.Generator) -> tuple:
    """Arguments of the operation in fp32, on the CPU. `hard`: large values."""
    features, n_fft = form.segments * form.width, 2 * positions + 1 if form.short else positions
    n_fft += (n_fft % 2 == 0) != form.even
    x = torch.randn(BATCH, positions, features, generator=generator) * (100 if hard else 1)
    spectrum = torch.randn(n_fft // 2 + 1, features, 2, generator=generator)
    lengths = ragged(BATCH, positions) if form.ragged else None
    return x, spectrum, n_fft, form.segments, lengths, form.beside
