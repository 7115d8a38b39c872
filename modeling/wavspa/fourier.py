"""Fourier transforms of each sample's own length, for a whole batch at once.

Row t and frequency f of a sample of n rows meet in exp(-2 pi i t f / n). With t f = (t^2 + f^2 - (f - t)^2) / 2 the
transform is a convolution with a chirp exp(pi i k^2 / n) (Bluestein), and convolutions of all lengths go through fast
transforms of one length. Phases come from whole numbers k^2 mod 2 n, so they are exact for every length.

All is computed in double precision: an impulse meets all frequencies alike, so that roundings of the transform, which
differ with the padding, add up where a sum over frequencies follows.
"""

import math

import torch


@torch.compiler.disable
def spectrum_of(rows: torch.Tensor, lengths: torch.Tensor | None, two_dimensional: bool = False) -> torch.Tensor:
    """Orthonormal transform of real rows: S[f] = n^-1/2 sum_t x[t] exp(-2 pi i t f / n), f = 0 .. n // 2.

    Compilers are kept out of it, since they make no code for complex numbers.

    Args:
        rows: (B, N, D) of any floating dtype, zero at and past each length; none of the axes is empty.
        lengths: (B,) int64, the period n of each sample; None: N.
        two_dimensional: transform the D channels of the result as well.

    Returns:
        (B, N // 2 + 1, 2 D) in the dtype of rows, the real parts before the imaginary ones; zero past frequency n // 2.
    """
    values = rows.to(torch.float64).transpose(1, 2)
    if lengths is None:
        spectrum = torch.fft.rfft(values.contiguous(), norm="ortho")
    else:
        count = rows.shape[1] // 2 + 1
        valid = torch.arange(count, device=rows.device) < frequencies(lengths)[:, None]
        spectrum = torch.where(valid[:, None], _chirp_transform(values, lengths, count, inverse=False), 0)
    if two_dimensional:
        spectrum = torch.fft.fft(spectrum, dim=1, norm="ortho")
    return torch.cat([spectrum.real, spectrum.imag], dim=1).transpose(1, 2).to(rows.dtype)


@torch.compiler.disable
def rows_of(
    spectrum: torch.Tensor, positions: int, lengths: torch.Tensor | None, two_dimensional: bool = False
) -> torch.Tensor:
    """The inverse of `spectrum_of`: (B, N // 2 + 1, 2 D) -> (B, N, D), zero at and past each length.

    Imaginary parts of frequency 0 and, for even n, n / 2 have no effect, nor has what stands past n // 2.
    """
    values = torch.complex(*spectrum.to(torch.float64).transpose(1, 2).chunk(2, dim=1))
    if two_dimensional:
        values = torch.fft.ifft(values, dim=1, norm="ortho")
    if lengths is None:
        return torch.fft.irfft(values, n=positions, norm="ortho").transpose(1, 2).to(spectrum.dtype)
    frequency = torch.arange(spectrum.shape[1], device=spectrum.device)
    # Each frequency stands for itself and its conjugate, except 0 and, for an even period, n / 2.
    own_conjugate = (frequency == 0) | (2 * frequency == lengths[:, None])
    weight = torch.where(own_conjugate, 1, 2) * (frequency < frequencies(lengths)[:, None])
    rows = _chirp_transform(values * weight[:, None], lengths, positions, inverse=True).real
    valid = torch.arange(positions, device=spectrum.device) < lengths[:, None]
    return torch.where(valid[:, None], rows, 0).transpose(1, 2).to(spectrum.dtype)


def frequencies(lengths: int | torch.Tensor) -> int | torch.Tensor:
    """Number of frequencies 0 .. n // 2 of n rows; none of no rows."""
    if isinstance(lengths, int):
        return lengths // 2 + 1 if lengths > 0 else 0
    return (lengths // 2 + 1) * (lengths > 0)


def _chirp_transform(values: torch.Tensor, lengths: torch.Tensor, count: int, inverse: bool) -> torch.Tensor:
    """n^-1/2 sum_m values[m] exp(-+ 2 pi i m k / n) for k < count: (B, D, M) -> (B, D, count) complex."""
    terms = values.shape[2]
    size = 1 << (terms + count - 2).bit_length()
    periods = lengths.clamp(min=1)[:, None]
    square = torch.arange(max(terms, count), device=values.device).square()
    angle = (square % (2 * periods)) * (math.pi / periods.to(torch.float64))
    chirp = torch.complex(angle.cos(), angle.sin() if inverse else -angle.sin())

    # The convolution meets lags 1 - M .. count - 1; it stands at lag modulo `size`, and what is between is never met.
    lag = torch.arange(size, device=values.device)
    lag = torch.where(lag < count, lag, size - lag).clamp(max=len(square) - 1)
    response = torch.fft.fft(chirp.conj()[:, lag])

    after = chirp[:, None, :count] * periods[:, None].to(torch.float64).rsqrt()
    convolved = torch.fft.ifft(torch.fft.fft(values * chirp[:, None, :terms], n=size) * response[:, None])
    return convolved[..., :count] * after
