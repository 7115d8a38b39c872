"""Periodised wavelet transforms in C++ (cpu.cpp)."""

import torch

from ..bands.layout import period_of
from ..build import INTEGERS, REALS, SIZE, Function

SIZES = (SIZE,) * 5  # B, N, D, T, J
FUNCTIONS = {
    "wavelet_analysis": Function("wavelet/cpu.cpp", "analysis", (REALS, REALS, INTEGERS, REALS, *SIZES)),
    "wavelet_synthesis": Function("wavelet/cpu.cpp", "synthesis", (REALS, REALS, INTEGERS, REALS, *SIZES)),
    "wavelet_derivative": Function("wavelet/cpu.cpp", "derivative", (REALS, REALS, REALS, INTEGERS, REALS, *SIZES)),
}


def wavelet_analysis(x, filters, levels, lengths):
    """Bands (B N', D) of x (B, N, D); see operator.py."""
    batch, positions, width = x.shape
    bands = filters.new_empty(batch * period_of(positions, levels), width)
    rows = x.to(filters.dtype)
    FUNCTIONS["wavelet_analysis"](rows, filters, lengths, bands, *x.shape, len(filters), levels)
    return bands.to(x.dtype)


def wavelet_synthesis(bands, filters, levels, batch, length, lengths):
    """Rows (B, N, D) from bands (B N', D)."""
    x = filters.new_empty(batch, length, bands.shape[1])
    FUNCTIONS["wavelet_synthesis"](bands.to(filters.dtype), filters, lengths, x, *x.shape, len(filters), levels)
    return x.to(bands.dtype)


def wavelet_derivative(x, bands, filters, levels, lengths):
    """The derivative of <bands, analysis(x)>, which is <synthesis(bands), x>, by the taps, (T, D)."""
    result = torch.empty_like(filters)
    rows, bands = x.to(filters.dtype), bands.to(filters.dtype)
    FUNCTIONS["wavelet_derivative"](rows, bands, filters, lengths, result, *x.shape, len(filters), levels)
    return result
