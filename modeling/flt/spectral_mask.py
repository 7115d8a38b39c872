"""The mask of relative positions, given by its Fourier transform, as biases of random features."""

import math

import torch
from torch import nn
from transformers import initialization as init

from .configuration_flt import FLTConfig
from .frequencies import Frequencies, spread_widths, turns
from .spectra import make_spectrum

# Below this part of a head's mean weight, a weight is no longer split evenly between queries and keys.
SMALL_WEIGHT = 1e-2


class SpectralMask(nn.Module):
    """N^_ij = 1/r sum_k Re(w_k e^(2 pi i xi_k . (r_i - r_j))), w_k = g(xi_k) / p(xi_k), for each head (theorem 4.1).

    Deviations from the paper:
    - real pairs in place of complex features (FL-2): phi_k = s_k [cos a, sin a] and
      psi_k = [Re w_k cos b + Im w_k sin b, Re w_k sin b - Im w_k cos b] / s_k with a, b the angles of query and key,
      both over sqrt(r), so that phi . psi = N^. A negative weight, or an odd part of the mask, is thus a phase shift on
      the side of the keys;
    - s_k is sqrt|w_k|, the even split of the paper, except near zeros of w_k, where a root would have no bounded slope;
    - with `directional` the terms are centred at learnable offsets c_t, a factor e^(-2 pi i c_t . xi): the
      parametrisations of the paper have real weights, and so even masks only;
    - the mean of |w_k| is held to `mask_bound` (FL-6), since the error of the features grows like its exponential;
    - no bound of g / p is asked for, as theorem 4.2 does: a window under normal frequencies has none, under
      `stratified` ones it has (FL-4);
    - the weights start small, so that the model starts as a Performer (FL-8).
    """

    def __init__(self, config: FLTConfig, layer_index: int = 0):
        super().__init__()
        self.config = config
        self.frequencies = Frequencies(config, layer_index)
        self.spectrum = make_spectrum(config)
        terms = 1 if config.spectral_kind == "kernel" else config.num_components
        shape = (config.num_attention_heads, terms)
        self.weight = nn.Parameter(torch.empty(shape))
        self.offset = nn.Parameter(torch.empty(*shape, config.position_dimensions)) if config.directional else None
        self.reset()

    def reset(self) -> None:
        """Small weights; centres as far from zero as the terms are wide."""
        init.normal_(self.weight, std=self.config.initializer_range)
        if self.offset is not None:
            init.normal_(self.offset, std=spread_widths(self.config, 1).item())

    def forward(
        self, coordinates: torch.Tensor | None, positions: int, projection: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Biases that the positions add to the projected queries and keys (FL-3).

        Args:
            coordinates: (B, N, l), finite; None: the indices 0 .. positions - 1.
            positions: N.
            projection: (m, 2 r), columns of the random projection for cosines, then for sines.

        Returns:
            (B, H, N, m) for the queries and for the keys in the dtype of the projection, B = 1 without coordinates.
        """
        working = projection.dtype
        frequencies, real, imaginary = self.weights()
        angle = 2 * math.pi * turns(self._units(coordinates, positions), frequencies).to(working)
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
        size = (real.square() + imaginary.square() + _TINY).sqrt()
        split = (size.square() + (SMALL_WEIGHT * size.mean(1, keepdim=True)).square()) ** 0.25
        cosine, sine = projection.chunk(2, dim=1)
        count = math.sqrt(self.config.num_frequencies)
        scale, real, imaginary = (
            factor.to(working)[:, None] for factor in (split / count, real / split / count, imaginary / split / count)
        )
        query = torch.cat([cosine * scale, sine * scale], dim=-1)
        key = torch.cat([cosine * real - sine * imaginary, cosine * imaginary + sine * real], dim=-1)
        return waves @ query.transpose(1, 2), waves @ key.transpose(1, 2)

    def weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Frequencies (1 or H, r, l), and real and imaginary parts (H, r) of w_k, bounded; float64."""
        frequencies, log_density = self.frequencies()
        terms = self.spectrum(frequencies) * torch.exp(-log_density)[:, None]
        weight = self.weight.to(torch.float64)[:, :, None]
        if self.offset is None:
            real = (weight * terms).sum(1)
            imaginary = torch.zeros_like(real)
        else:
            angle = 2 * math.pi * turns(self.offset.to(torch.float64), frequencies)
            real = (weight * terms * angle.cos()).sum(1)
            imaginary = -(weight * terms * angle.sin()).sum(1)
        if self.config.mask_bound is not None:
            mean = (real.square() + imaginary.square() + _TINY).sqrt().mean(1, keepdim=True)
            kept = (self.config.mask_bound / mean).clamp(max=1)
            real, imaginary = real * kept, imaginary * kept
        return frequencies, real, imaginary

    def matrix(self, coordinates: torch.Tensor | None, positions: int) -> torch.Tensor:
        """N^ itself, (B, H, N, N) in float64, B = 1 without coordinates: the mask that the features estimate."""
        frequencies, real, imaginary = self.weights()
        angle = 2 * math.pi * turns(self._units(coordinates, positions), frequencies)
        difference = angle[..., :, None, :] - angle[..., None, :, :]
        waves = real[:, None, None] * difference.cos() - imaginary[:, None, None] * difference.sin()
        return waves.mean(-1)

    def _units(self, coordinates: torch.Tensor | None, positions: int) -> torch.Tensor:
        """Positions in units of distance: (B, 1, N, l) float64, B = 1 without coordinates."""
        if coordinates is None:
            index = torch.arange(positions, device=self.weight.device, dtype=torch.float64)
            return self.config.position_scale * index[None, None, :, None]
        return self.config.position_scale * coordinates[:, None].to(torch.float64)


# Keeps the slope of an absolute value finite where a whole mask is zero.
_TINY = 1e-24
