"""Taps of orthogonal wavelets: PyWavelets' families, and the lattice of rotations."""

from functools import cache

import numpy as np
import pywt
import torch

# PyWavelets counts the discrete Meyer wavelet as orthogonal; its 62 taps are so to 2e-3 only, and reconstruct as badly.
NOT_ORTHONORMAL = ("dmey",)


@cache
def orthogonal_wavelets() -> tuple[str, ...]:
    """Names of PyWavelets' orthogonal wavelets, shortest filters of each family first."""
    names = [name for name in pywt.wavelist(kind="discrete") if name not in NOT_ORTHONORMAL]
    return tuple(name for name in names if pywt.Wavelet(name).orthogonal)


def scaling_taps(name: str) -> torch.Tensor:
    """Low-pass taps (T,) float64 of an orthogonal wavelet, in the order of `wavelet_analysis`, on the CPU."""
    # By way of numpy: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    return torch.from_numpy(np.array(pywt.Wavelet(name).dec_lo[::-1], dtype=np.float64))


def lattice_taps(angles: torch.Tensor) -> torch.Tensor:
    """Low-pass taps of an orthogonal wavelet from rotations, (T / 2, D) -> (T, D) (WavSpA, eqs. 5 and 6).

    The taps start as (1, 0, .., 0). Each angle turns the pairs of neighbours, (u, v) -> (u sin + v cos, u cos - v sin),
    and between two turns the taps move on by one. Any angles give taps that are orthonormal to their shifts by 2; their
    sum is sqrt(2) sin(pi / 4 + the sum of the angles).
    """
    taps = angles.new_zeros(2 * len(angles), angles.shape[1])
    taps = torch.cat([torch.ones_like(angles[:1]), taps[1:]])
    for step, (sine, cosine) in enumerate(zip(angles.sin(), angles.cos(), strict=True)):
        if step > 0:
            taps = taps.roll(1, 0)
        first, second = taps.unflatten(0, (-1, 2)).unbind(1)
        taps = torch.stack([first * sine + second * cosine, first * cosine - second * sine], dim=1).flatten(0, 1)
    return taps
