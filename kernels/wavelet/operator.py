"""Periodised wavelet transforms as operators of torch, computed by cpu.py or gpu.py.

Analysis and synthesis are adjoint, <bands, analysis(x)> = <synthesis(bands), x>: each is the derivative of the other by
the rows or bands, and both have the derivative of this number by the taps.
"""

import torch

from ..bands.layout import period_of
from ..selection import kernels


def wavelet_analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_analysis`."""
    return _analysis(x.contiguous(), _of_channels(filters, x), levels, lengths)


def wavelet_synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_synthesis`."""
    return _synthesis(bands.contiguous(), _of_channels(filters, bands), levels, length, lengths)


def _of_channels(filters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Taps (T, D) or (T,) -> (T, D), contiguous, fp32 or float64 as x is computed in."""
    filters = filters.to(torch.promote_types(x.dtype, torch.float32))
    return (filters if filters.dim() == 2 else filters[:, None].expand(-1, x.shape[2])).contiguous()


@torch.library.custom_op("longmix::wavelet_analysis", mutates_args=())
def _analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Packed bands (B, N', D) of x (B, N, D), contiguous, any floating dtype; filters (T, D), fp32 or float64."""
    return kernels("wavelet_analysis", x.device).analysis(x, filters, levels, lengths)


@torch.library.custom_op("longmix::wavelet_synthesis", mutates_args=())
def _synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Rows (B, N, D) from packed bands."""
    return kernels("wavelet_synthesis", bands.device).synthesis(bands, filters, levels, length, lengths)


@torch.library.custom_op("longmix::wavelet_derivative", mutates_args=())
def _derivative(
    x: torch.Tensor, bands: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """The derivative of <bands, analysis(x)> by the taps, (T, D); approximations are computed anew."""
    return kernels("wavelet_analysis", x.device).derivative(x, bands, filters, levels, lengths)


@_analysis.register_fake
def _(x, filters, levels, lengths):
    return x.new_empty(x.shape[0], period_of(x.shape[1], levels), x.shape[2])


@_synthesis.register_fake
def _(bands, filters, levels, length, lengths):
    return bands.new_empty(bands.shape[0], length, bands.shape[2])


@_derivative.register_fake
def _(x, bands, filters, levels, lengths):
    return torch.empty_like(filters)


def _save_analysis(ctx, inputs, output):
    x, filters, ctx.levels, lengths = inputs
    ctx.save_for_backward(x, filters, lengths)


def _differentiate_analysis(ctx, gradient):
    x, filters, lengths = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_x = of_filters = None
    if ctx.needs_input_grad[0]:
        of_x = _synthesis(gradient, filters, ctx.levels, x.shape[1], lengths)
    if ctx.needs_input_grad[1]:
        of_filters = _derivative(x, gradient, filters, ctx.levels, lengths)
    return of_x, of_filters, None, None


def _save_synthesis(ctx, inputs, output):
    bands, filters, ctx.levels, _, lengths = inputs
    ctx.save_for_backward(bands, filters, lengths)


def _differentiate_synthesis(ctx, gradient):
    bands, filters, lengths = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_bands = of_filters = None
    if ctx.needs_input_grad[0]:
        of_bands = _analysis(gradient, filters, ctx.levels, lengths)
    if ctx.needs_input_grad[1]:
        of_filters = _derivative(gradient, bands, filters, ctx.levels, lengths)
    return of_bands, of_filters, None, None, None


_analysis.register_autograd(_differentiate_analysis, setup_context=_save_analysis)
_synthesis.register_autograd(_differentiate_synthesis, setup_context=_save_synthesis)
