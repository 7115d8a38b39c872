"""Periodised wavelet transforms in C++ (cpu.cpp)."""

import torch

from ..bands.layout import period_of
from ..build import call, library

SOURCE = "wavelet/cpu.cpp"


def load() -> None:
    """Compile the first kernel unless that has been done. Raises BuildError."""
    library(SOURCE, "analysis", torch.float32)


def analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Packed bands (B, N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = filters.new_empty(batch, period_of(positions, levels), width)
    _call("analysis", x.to(filters.dtype), filters, lengths, bands, *x.shape, len(filters), levels)
    return bands.to(x.dtype)


def synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Rows (B, N, D) from packed bands."""
    batch, _, width = bands.shape
    x = filters.new_empty(batch, length, width)
    _call("synthesis", bands.to(filters.dtype), filters, lengths, x, *x.shape, len(filters), levels)
    return x.to(bands.dtype)


def derivative(
    x: torch.Tensor, bands: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """The derivative of <bands, analysis(x)>, which is <synthesis(bands), x>, by the taps, (T, D)."""
    result = torch.empty_like(filters)
    rows, bands = x.to(filters.dtype), bands.to(filters.dtype)
    _call("derivative", rows, bands, filters, lengths, result, *x.shape, len(filters), levels)
    return result


def _call(part: str, first: torch.Tensor, *arguments: torch.Tensor | int | None) -> None:
    call(SOURCE, part, first.dtype, first, *arguments)
