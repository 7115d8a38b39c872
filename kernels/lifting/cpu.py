"""Periodised lifting in C++ (cpu.cpp)."""

import torch

from ..bands.layout import period_of
from ..build import call, library

SOURCE = "lifting/cpu.cpp"


def load() -> None:
    """Compile the first kernel unless that has been done. Raises BuildError."""
    library(SOURCE, "analysis", torch.float32)


def analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Packed bands (B, N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = x.new_empty(batch, period_of(positions, levels), width)
    _call("analysis", x, predict, update, lengths, bands, *_sizes(x, predict, update), levels)
    return bands


def synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Rows (B, N, D) from packed bands."""
    x = bands.new_empty(bands.shape[0], length, bands.shape[2])
    _call("synthesis", bands, predict, update, lengths, x, *_sizes(x, predict, update), levels)
    return x


def analysis_backward(
    gradient: torch.Tensor,
    x: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, predict and update, the last two empty for fixed steps."""
    of_x = gradient.new_empty(gradient.shape[0], length, gradient.shape[2])
    of_taps = [_empty_like(taps, gradient) for taps in (predict, update)]
    sizes = _sizes(of_x, predict, update)
    _call("analysis_backward", gradient, x, predict, update, lengths, of_x, *of_taps, *sizes, levels)
    return of_x, *of_taps


def synthesis_backward(
    gradient: torch.Tensor,
    bands: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of bands, predict and update, the last two empty for fixed steps."""
    batch, length, width = gradient.shape
    of_bands = gradient.new_empty(batch, period_of(length, levels), width)
    of_taps = [_empty_like(taps, gradient) for taps in (predict, update)]
    sizes = _sizes(gradient, predict, update)
    _call("synthesis_backward", gradient, bands, predict, update, lengths, of_bands, *of_taps, *sizes, levels)
    return of_bands, *of_taps


def _empty_like(taps: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.new_empty(0) if taps is None else torch.empty_like(taps)


def _sizes(rows: torch.Tensor, predict: torch.Tensor | None, update: torch.Tensor | None) -> tuple[int, ...]:
    return *rows.shape, *(0 if taps is None else len(taps) for taps in (predict, update))


def _call(part: str, first: torch.Tensor, *arguments: torch.Tensor | int | None) -> None:
    call(SOURCE, part, first.dtype, first, *arguments)
