"""S3Attention's Fourier convolution: what it means."""

import torch

from ..common.arguments import as_lengths
from ..common.rows import of_nothing
from ..selection import select
from .portable import spectral_filter as portable
from .reference import spectral_filter as reference


def spectral_filter(
    x: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    segments: int | None = None,
    lengths: torch.Tensor | None = None,
    beside: bool = False,
) -> torch.Tensor:
    """Circular convolution of every channel with a learned kernel, given by its spectrum (S3Attention, eq. 3).

    y[b, t, c] = sum_j kernel[(t - j) mod n_fft, c] * u[b, j, c // (D / r)], with kernel = irfft(spectrum) and u the
    mean of each of the r segments of channels.

    Args:
        x: (B, N, D), any floating dtype; N <= n_fft.
        spectrum: (n_fft // 2 + 1, D, 2), real and imaginary parts. The imaginary parts of the first bin, and of
            the last one for even n_fft, have no effect.
        n_fft: period of the convolution, in positions.
        segments: number r of segments that D channels are averaged in; None: every channel is its own segment.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.
        beside: the valid rows of x stand beside the result, as what reads both wants them.

    Returns:
        (B, N, D), or (B, N, 2 D) with x, in the dtype of x; computed in fp32, or in float64 for float64 input.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    features = x.shape[-1]
    if x.dim() != 3 or tuple(spectrum.shape) != (n_fft // 2 + 1, features, 2):
        raise ValueError(
            f"spectrum has shape {tuple(spectrum.shape)} for x of shape {tuple(x.shape)} and n_fft {n_fft}; "
            f"needed: x (B, N, D) and spectrum {(n_fft // 2 + 1, features, 2)}"
        )
    if x.shape[1] > n_fft:
        raise ValueError(f"x has {x.shape[1]} positions; allowed: at most n_fft = {n_fft}")
    if segments is not None and (segments < 1 or features % segments):
        raise ValueError(f"segments is {segments}; allowed: divisors of the {features} channels")
    lengths = as_lengths(lengths, *x.shape[:2], x.device)
    run = select("spectral_filter", x.device, {"portable": portable, "reference": reference})
    if x.numel() == 0:
        # Fourier transforms refuse empty tensors
        return of_nothing(torch.cat([x, x], dim=2) if beside else x, spectrum)
    return run(x, spectrum, n_fft, features if segments is None else segments, lengths, beside)
