"""Periodised wavelet transforms as operators of torch.

Analysis and synthesis are adjoint, <bands, analysis(x)> = <synthesis(bands), x>: each is the derivative of the other by
the rows or bands, and both have the derivative of this number by the taps.
"""

import torch

from ..bands.layout import period_of
from ..operators import differentiate, operator


def wavelet_analysis(
    kernels: str, x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_analysis`."""
    return _analysis(kernels, x.contiguous(), _of_channels(filters, x), levels, lengths)


def wavelet_synthesis(
    kernels: str,
    bands: torch.Tensor,
    filters: torch.Tensor,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_synthesis`."""
    return _synthesis(kernels, bands.contiguous(), _of_channels(filters, bands), levels, batch, length, lengths)


def _of_channels(filters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Taps (T, D) or (T,) -> (T, D), contiguous, fp32 or float64 as x is computed in."""
    filters = filters.to(torch.promote_types(x.dtype, torch.float32))
    return (filters if filters.dim() == 2 else filters[:, None].expand(-1, x.shape[-1])).contiguous()


@operator(__package__, "wavelet_analysis")
def _analysis(
    kernels: str, x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Bands (B N', D) of x (B, N, D), contiguous, any floating dtype; filters (T, D), fp32 or float64."""
    return x.new_empty(x.shape[0] * period_of(x.shape[1], levels), x.shape[2])


@operator(__package__, "wavelet_synthesis")
def _synthesis(
    kernels: str,
    bands: torch.Tensor,
    filters: torch.Tensor,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Rows (B, N, D) from bands (B N', D)."""
    return bands.new_empty(batch, length, bands.shape[1])


@operator(__package__, "wavelet_derivative")
def _derivative(
    kernels: str,
    x: torch.Tensor,
    bands: torch.Tensor,
    filters: torch.Tensor,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """The derivative of <bands, analysis(x)> by the taps, (T, D); approximations are computed anew."""
    return torch.empty_like(filters)


def _differentiate_analysis(kernels, needed, gradient, x, filters, levels, lengths):
    return (
        _synthesis(kernels, gradient, filters, levels, *x.shape[:2], lengths) if needed[0] else None,
        _derivative(kernels, x, gradient, filters, levels, lengths) if needed[1] else None,
    )


def _differentiate_synthesis(kernels, needed, gradient, bands, filters, levels, batch, length, lengths):
    return (
        _analysis(kernels, gradient, filters, levels, lengths) if needed[0] else None,
        _derivative(kernels, gradient, bands, filters, levels, lengths) if needed[1] else None,
    )


differentiate(_analysis, _differentiate_analysis)
differentiate(_synthesis, _differentiate_synthesis)
