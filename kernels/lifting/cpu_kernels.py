"""Periodised lifting in C++ (cpu.cpp)."""

import torch

from ..bands.layout import period_of
from ..build import INTEGERS, REALS, SIZE, Function

SIZES = (SIZE,) * 6  # B, N, D, taps of predict, taps of update, J
FORWARD = (REALS, REALS, REALS, INTEGERS, REALS, *SIZES)
BACKWARD = (*[REALS] * 4, INTEGERS, *[REALS] * 3, *SIZES)
FUNCTIONS = {
    "lifting_analysis": Function("lifting/cpu.cpp", "analysis", FORWARD),
    "lifting_analysis_backward": Function("lifting/cpu.cpp", "analysis_backward", BACKWARD),
    "lifting_synthesis": Function("lifting/cpu.cpp", "synthesis", FORWARD),
    "lifting_synthesis_backward": Function("lifting/cpu.cpp", "synthesis_backward", BACKWARD),
}


def lifting_analysis(x, predict, update, levels, lengths):
    """Bands (B N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    rows = _working(x)
    bands = rows.new_empty(batch * period_of(positions, levels), width)
    FUNCTIONS["lifting_analysis"](rows, predict, update, lengths, bands, *_sizes(x, predict, update), levels)
    return bands.to(x.dtype)


def lifting_synthesis(bands, predict, update, levels, batch, length, lengths):
    """Rows (B, N, D) from bands (B N', D)."""
    found = _working(bands)
    x = found.new_empty(batch, length, bands.shape[1])
    FUNCTIONS["lifting_synthesis"](found, predict, update, lengths, x, *_sizes(x, predict, update), levels)
    return x.to(bands.dtype)


def lifting_analysis_backward(gradient, bands, predict, update, levels, batch, length, lengths):
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    of_bands, made = _working(gradient), None if bands is None else _working(bands)
    of_x = of_bands.new_empty(batch, length, gradient.shape[1])
    of_taps = [_empty_like(taps, of_x) for taps in (predict, update)]
    sizes = *_sizes(of_x, predict, update), levels
    FUNCTIONS["lifting_analysis_backward"](of_bands, made, predict, update, lengths, of_x, *of_taps, *sizes)
    return of_x.to(gradient.dtype), *of_taps


def lifting_synthesis_backward(gradient, bands, predict, update, levels, lengths):
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    of_x, made = _working(gradient), None if bands is None else _working(bands)
    of_bands = of_x.new_empty(batch * period_of(length, levels), width)
    of_taps = [_empty_like(taps, of_x) for taps in (predict, update)]
    sizes = *_sizes(gradient, predict, update), levels
    FUNCTIONS["lifting_synthesis_backward"](of_x, made, predict, update, lengths, of_bands, *of_taps, *sizes)
    return of_bands.to(gradient.dtype), *of_taps


def _working(rows: torch.Tensor) -> torch.Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _empty_like(taps: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(0) if taps is None else torch.empty_like(taps)


def _sizes(rows: torch.Tensor, predict: torch.Tensor | None, update: torch.Tensor | None) -> tuple[int, ...]:
    return *rows.shape, *(0 if taps is None else len(taps) for taps in (predict, update))
