"""S3Attention's Fourier convolution, written out as one matrix per channel in float64."""

import math

import torch


def spectral_filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None, beside: bool
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`; memory (N, N, D)."""
    batch, positions, features = x.shape
    values = x.double()
    if lengths is not None:
        valid = torch.arange(positions, device=x.device) < lengths[:, None]
        values = torch.where(valid[:, :, None], values, 0.0)
    means = values.view(batch, positions, segments, features // segments).mean(-1)
    means = means.repeat_interleave(features // segments, dim=2)

    kernel = inverse_transform(spectrum.double(), n_fft)
    row = torch.arange(positions, device=x.device)
    circulant = kernel[(row[:, None] - row[None, :]) % n_fft]
    result = torch.einsum("tjc,bjc->btc", circulant, means)
    if lengths is not None:
        result = torch.where(valid[:, :, None], result, 0.0)
    return (torch.cat([result, values], dim=2) if beside else result).to(x.dtype)


def inverse_transform(spectrum: torch.Tensor, n_fft: int) -> torch.Tensor:
    """Inverse real discrete Fourier transform as a sum of cosines and sines: (n_fft // 2 + 1, D, 2) -> (n_fft, D)."""
    frequency = torch.arange(n_fft // 2 + 1, device=spectrum.device)
    time = torch.arange(n_fft, device=spectrum.device)
    angle = (time[:, None] * frequency[None, :] % n_fft).to(spectrum.dtype) * (2 * math.pi / n_fft)
    # Each frequency stands for itself and its conjugate, except 0 and, for an even period, n_fft / 2.
    own_conjugate = (frequency == 0) | (2 * frequency == n_fft)
    weight = torch.where(own_conjugate, 1.0, 2.0).to(spectrum.dtype) / n_fft
    sine = torch.where(own_conjugate, 0.0, torch.sin(angle))
    return (torch.cos(angle) * weight) @ spectrum[..., 0] - (sine * weight) @ spectrum[..., 1]
