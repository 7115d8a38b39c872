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
    """Packed bands (B, N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = x.new_empty(batch, period_of(positions, levels), width)
    FUNCTIONS["lifting_analysis"](x, predict, update, lengths, bands, *_sizes(x, predict, update), levels)
    return bands


def lifting_synthesis(bands, predict, update, levels, length, lengths):
    """Rows (B, N, D) from packed bands."""
    x = bands.new_empty(bands.shape[0], length, bands.shape[2])
    FUNCTIONS["lifting_synthesis"](bands, predict, update, lengths, x, *_sizes(x, predict, update), levels)
    return x


def lifting_analysis_backward(gradient, x, predict, update, levels, length, lengths):
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    of_x = gradient.new_empty(gradient.shape[0], length, gradient.shape[2])
    results = of_x, *(_empty_like(taps, gradient) for taps in (predict, update))
    sizes = *_sizes(of_x, predict, update), levels
    FUNCTIONS["lifting_analysis_backward"](gradient, x, predict, update, lengths, *results, *sizes)
    return results


def lifting_synthesis_backward(gradient, bands, predict, update, levels, lengths):
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    of_bands = gradient.new_empty(batch, period_of(length, levels), width)
    results = of_bands, *(_empty_like(taps, gradient) for taps in (predict, update))
    sizes = *_sizes(gradient, predict, update), levels
    FUNCTIONS["lifting_synthesis_backward"](gradient, bands, predict, update, lengths, *results, *sizes)
    return results


def _empty_like(taps: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.new_empty(0) if taps is None else torch.empty_like(taps)


def _sizes(rows: torch.Tensor, predict: torch.Tensor | None, update: torch.Tensor | None) -> tuple[int, ...]:
    return *rows.shape, *(0 if taps is None else len(taps) for taps in (predict, update))
