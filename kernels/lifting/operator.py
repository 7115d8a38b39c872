"""Periodised lifting as operators of torch.

Fixed steps are linear: their derivative needs neither rows nor bands, so none are kept. Learned ones keep the bands, of
which the rows can be computed again.
"""

import torch

from ..bands.layout import period_of
from ..operators import differentiate, operator


def lifting_analysis(
    kernels: str,
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    return _analysis(kernels, x.contiguous(), *_in_working_dtype(x, predict, update), levels, lengths)


def lifting_synthesis(
    kernels: str,
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    steps = _in_working_dtype(bands, predict, update)
    return _synthesis(kernels, bands.contiguous(), *steps, levels, batch, length, lengths)


def _in_working_dtype(rows: torch.Tensor, *taps: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Taps (T, D), contiguous, fp32 or float64 as the rows are computed in."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return [None if tensor is None else tensor.to(dtype).contiguous() for tensor in taps]


@operator(__package__, "lifting_analysis")
def _analysis(
    kernels: str,
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Bands (B N', D) of x (B, N, D), contiguous, any floating dtype; taps (T, D), fp32 or float64."""
    return x.new_empty(x.shape[0] * period_of(x.shape[1], levels), x.shape[2])


@operator(__package__, "lifting_analysis_backward")
def _analysis_backward(
    kernels: str,
    gradient: torch.Tensor,
    bands: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, predict and update, of which the last two are empty, and bands is None, for fixed steps."""
    of_taps = [_of_taps(taps, gradient) for taps in (predict, update)]
    return gradient.new_empty(batch, length, gradient.shape[1]), *of_taps


@operator(__package__, "lifting_synthesis")
def _synthesis(
    kernels: str,
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Rows (B, N, D) from bands (B N', D), contiguous, any floating dtype; taps (T, D), fp32 or float64."""
    return bands.new_empty(batch, length, bands.shape[1])


@operator(__package__, "lifting_synthesis_backward")
def _synthesis_backward(
    kernels: str,
    gradient: torch.Tensor,
    bands: torch.Tensor | None,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of bands, predict and update, of which the last two are empty, and bands is None, for fixed steps."""
    of_taps = [_of_taps(taps, gradient) for taps in (predict, update)]
    batch, length, width = gradient.shape
    return gradient.new_empty(batch * period_of(length, levels), width), *of_taps


def _of_taps(taps: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    if taps is None:
        return gradient.new_empty(0, dtype=torch.promote_types(gradient.dtype, torch.float32))
    return torch.empty_like(taps)


def _derivative(backward):
    """The derivative for `differentiate`: fixed steps have no taps that a gradient could go to."""

    def differentiated(kernels, needed, gradient, rows, predict, *more):
        of_rows, *of_taps = backward(kernels, gradient, rows, predict, *more)
        return (of_rows,) if predict is None else (of_rows, *of_taps)

    return differentiated


def _keep_analysis(output, x, predict, update, levels, lengths):
    return None if predict is None else output, predict, update, levels, *x.shape[:2], lengths


def _keep_synthesis(output, bands, predict, update, levels, batch, length, lengths):
    return None if predict is None else bands, predict, update, levels, lengths


differentiate(_analysis, _derivative(_analysis_backward), _keep_analysis)
differentiate(_synthesis, _derivative(_synthesis_backward), _keep_synthesis)
