"""The mask of relative positions, given by its Fourier transform, as biases of random features."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers import initialization as init

from ..context import BatchContext
from ..masking import keep_valid
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

    def forward(self, tokens: torch.Tensor, context: BatchContext) -> tuple[torch.Tensor, torch.Tensor]:
        """What the biases of all layers with this mask are made of, see `scaled_columns`; computed in fp32 or wider.

        Args:
            tokens: (.., N, k), any tensor of the batch's tokens: read are N and the dtype.
            context: whose coordinates the positions are; without, they are the indices.

        Returns:
            The waves, cos a and sin a of the angles a of positions, (B, 1 or H, N, 2 r), B = 1 where they are those of
            the indices; and the factors (2 r, 2 H, 2) of a projection's columns and of their partners, cosine and sine
            of one frequency: those of the H heads' queries, then of their keys.

        Raises:
            ValueError: coordinates that do not fit coordinate_dimensions.
        """
        working = torch.promote_types(tokens.dtype, torch.float32)
        with torch.autocast(tokens.device.type, enabled=False):
            frequencies, weights = self._weights()
            units = self._units(self._coordinates(context), tokens.shape[-2])
            angle = 2 * math.pi * turns(units, frequencies).to(working)
            waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
            # Both sides take their share of 1 / r, as it takes the fewest launches.
            weights = weights / self.config.num_frequencies
            square = _absolute_square(weights)
            split = (square + (SMALL_WEIGHT * square.sqrt().mean(1, keepdim=True)).square()) ** 0.25
            real, imaginary = (weights / split).unbind(0)
            # Of a column of cosines, then of one of sines: what it is multiplied with, and what its partner is.
            own, partner = torch.cat([split, real]), torch.cat([torch.zeros_like(split), imaginary])
            factors = torch.stack([torch.cat([own, own], dim=1), torch.cat([-partner, partner], dim=1)])
            return waves, factors.permute(2, 1, 0).to(working)

    def weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Frequencies (1 or H, r, l), and real and imaginary parts (H, r) of w_k, bounded; float64."""
        frequencies, weights = self._weights()
        return frequencies, *weights.unbind(0)

    def _weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`weights` with both parts in one, (2, H, r), so that what both go through is one launch."""
        frequencies, log_density = self.frequencies()
        terms = self.spectrum(frequencies) * torch.exp(-log_density)[:, None]
        weighted = self.weight.to(torch.float64)[:, :, None] * terms
        if self.offset is None:
            real = weighted.sum(1)
            parts = torch.stack([real, torch.zeros_like(real)])
        else:
            angle = -2 * math.pi * turns(self.offset.to(torch.float64), frequencies)
            parts = (weighted * torch.stack([angle.cos(), angle.sin()])).sum(2)
        if self.config.mask_bound is not None:
            mean = _absolute_square(parts).sqrt().mean(1, keepdim=True)
            parts = parts * (self.config.mask_bound / mean).clamp(max=1)
        return frequencies, parts

    def matrix(self, coordinates: torch.Tensor | None, positions: int) -> torch.Tensor:
        """N^ itself, (B, H, N, N) in float64, B = 1 without coordinates: the mask that the features estimate."""
        frequencies, real, imaginary = self.weights()
        angle = 2 * math.pi * turns(self._units(coordinates, positions), frequencies)
        difference = angle[..., :, None, :] - angle[..., None, :, :]
        waves = real[:, None, None] * difference.cos() - imaginary[:, None, None] * difference.sin()
        return waves.mean(-1)

    def _coordinates(self, context: BatchContext) -> torch.Tensor | None:
        """Coordinates of the tokens, (B, N, l), zero on padding; None: the indices, alike in all samples."""
        dimensions, coordinates = self.config.coordinate_dimensions, context.coordinates
        given = None if coordinates is None else tuple(coordinates.shape)
        if (given is None) != (dimensions == 0) or (given is not None and given[2:] != (dimensions,)):
            allowed = f"('B', 'N', {dimensions})" if dimensions else "None"
            raise ValueError(f"coordinates have shape {given}; allowed: {allowed}, of coordinate_dimensions")
        return None if coordinates is None else keep_valid(coordinates, context.mask)

    def _units(self, coordinates: torch.Tensor | None, positions: int) -> torch.Tensor:
        """Positions in units of distance: (B, 1, N, l) float64, B = 1 without coordinates."""
        if coordinates is None:
            index = torch.arange(positions, device=self.weight.device, dtype=torch.float64)
            return self.config.position_scale * index[None, None, :, None]
        return self.config.position_scale * coordinates[:, None].to(torch.float64)


def scaled_columns(factors: torch.Tensor, projections: torch.Tensor) -> Sequence[torch.Tensor]:
    """What multiplies waves to the biases that positions add to the projected queries and keys (FL-3).

    Args:
        factors: (2 r, 2 H, 2), what a mask's `forward` returns.
        projections: (L, m, 2 r) in their dtype, columns of L random projections for cosines, then for sines.

    Returns:
        (2, H, 2 r, m) for the queries and for the keys, of each projection.
    """
    layers, features, width = projections.shape
    columns = projections.permute(2, 0, 1).flatten(1)
    pairs = torch.stack([columns, columns.roll(width // 2, 0)], dim=1)
    # One small product: written out, these sums would be a dozen operations, forward and backward.
    parts = torch.bmm(factors, pairs).unflatten(2, (layers, features)).unbind(2)
    return [part.unflatten(1, (2, -1)).permute(1, 2, 0, 3) for part in parts]


def _absolute_square(parts: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts (2, ..) -> (..), never zero: the slope of an absolute value is finite where a whole mask
    is zero."""
    return parts.square().sum(0) + _TINY


_TINY = 1e-24
