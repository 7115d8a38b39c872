"""S3Attention's Fourier convolution as an operator of torch."""

import torch

from ..operators import differentiate, operator
from .responses import empty_transforms


def spectral_filter(
    kernels: str,
    x: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    segments: int,
    lengths: torch.Tensor | None,
    beside: bool,
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`."""
    return _forward(kernels, x.contiguous(), spectrum.contiguous(), n_fft, segments, lengths, beside)[0]


@operator(__package__, "spectral_filter")
def _forward(
    kernels: str,
    x: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    segments: int,
    lengths: torch.Tensor | None,
    beside: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (B, N, D) and spectrum of any floating dtypes, contiguous -> (B, N, D) or, with x, (B, N, 2 D), and for the
    backward pass the transforms of the segments' means, (B, r, period // 2 + 1, 2), divided by the period.
    """
    batch, positions, features = x.shape
    return x.new_empty(batch, positions, features * (1 + beside)), empty_transforms(x, n_fft, segments)


@operator(__package__, "spectral_filter_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    transformed: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and spectrum for that of the result."""
    return gradient.new_empty(*gradient.shape[:2], spectrum.shape[1]), torch.empty_like(spectrum)


differentiate(
    _forward,
    lambda kernels, needed, *arguments: _backward(kernels, *arguments),
    keep=lambda results, x, spectrum, n_fft, segments, lengths, beside: (results[1], spectrum, n_fft, lengths),
)
