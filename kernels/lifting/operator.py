"""Periodised lifting as operators of torch, computed by cpu.py or gpu.py.

Fixed steps are linear: their derivative needs neither rows nor bands, so none are kept.
"""

import torch

from ..bands.layout import period_of
from ..selection import kernels


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    working = torch.promote_types(x.dtype, torch.float32)
    bands = _analysis(*_contiguous(working, x, predict, update), levels, lengths)
    return bands.to(x.dtype)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    working = torch.promote_types(bands.dtype, torch.float32)
    x = _synthesis(*_contiguous(working, bands, predict, update), levels, length, lengths)
    return x.to(bands.dtype)


def _contiguous(dtype: torch.dtype, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.to(dtype).contiguous() for tensor in tensors]


@torch.library.custom_op("longmix::lifting_analysis", mutates_args=())
def _analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Packed bands (B, N', D) of x (B, N, D), contiguous, fp32 or float64, as the taps (T, D) are."""
    return kernels("lifting_analysis", x.device).analysis(x, predict, update, levels, lengths)


@_analysis.register_fake
def _(x, predict, update, levels, lengths):
    return x.new_empty(x.shape[0], period_of(x.shape[1], levels), x.shape[2])


@torch.library.custom_op("longmix::lifting_analysis_backward", mutates_args=())
def _analysis_backward(
    gradient: torch.Tensor,
    x: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, predict and update, of which the last two are empty, and x is None, for fixed steps."""
    run = kernels("lifting_analysis", gradient.device).analysis_backward
    return run(gradient, x, predict, update, levels, length, lengths)


@_analysis_backward.register_fake
def _(gradient, x, predict, update, levels, length, lengths):
    of_taps = [_of_taps(taps, gradient) for taps in (predict, update)]
    return gradient.new_empty(gradient.shape[0], length, gradient.shape[2]), *of_taps


@torch.library.custom_op("longmix::lifting_synthesis", mutates_args=())
def _synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Rows (B, N, D) from packed bands, contiguous, fp32 or float64, as the taps (T, D) are."""
    return kernels("lifting_synthesis", bands.device).synthesis(bands, predict, update, levels, length, lengths)


@_synthesis.register_fake
def _(bands, predict, update, levels, length, lengths):
    return bands.new_empty(bands.shape[0], length, bands.shape[2])


@torch.library.custom_op("longmix::lifting_synthesis_backward", mutates_args=())
def _synthesis_backward(
    gradient: torch.Tensor,
    bands: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of bands, predict and update, of which the last two are empty, and bands is None, for fixed steps."""
    run = kernels("lifting_synthesis", gradient.device).synthesis_backward
    return run(gradient, bands, predict, update, levels, lengths)


@_synthesis_backward.register_fake
def _(gradient, bands, predict, update, levels, lengths):
    of_taps = [_of_taps(taps, gradient) for taps in (predict, update)]
    batch, length, width = gradient.shape
    return gradient.new_empty(batch, period_of(length, levels), width), *of_taps


def _of_taps(taps: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.new_empty(0) if taps is None else torch.empty_like(taps)


def _save_analysis(ctx, inputs, output):
    x, predict, update, ctx.levels, lengths = inputs
    ctx.length = x.shape[1]
    ctx.save_for_backward(None if predict is None else x, predict, update, lengths)


def _differentiate_analysis(ctx, gradient):
    x, predict, update, lengths = ctx.saved_tensors
    of_x, *of_taps = _analysis_backward(gradient.contiguous(), x, predict, update, ctx.levels, ctx.length, lengths)
    return of_x, *(of_taps if predict is not None else (None, None)), None, None


def _save_synthesis(ctx, inputs, output):
    bands, predict, update, ctx.levels, _, lengths = inputs
    ctx.save_for_backward(None if predict is None else bands, predict, update, lengths)


def _differentiate_synthesis(ctx, gradient):
    bands, predict, update, lengths = ctx.saved_tensors
    of_bands, *of_taps = _synthesis_backward(gradient.contiguous(), bands, predict, update, ctx.levels, lengths)
    return of_bands, *(of_taps if predict is not None else (None, None)), None, None, None


_analysis.register_autograd(_differentiate_analysis, setup_context=_save_analysis)
_synthesis.register_autograd(_differentiate_synthesis, setup_context=_save_synthesis)
