"""Fourier transforms of masks: the terms of the sum g (FLT, section 4.3 and eq. 20), each without its weight w_t.

Every term is scaled to a height of about 1 in the space of positions, so that weights mean the same whatever the kind,
the dimension and the unit of distance: w_t takes up the paper's constant.
"""

import math

import torch
from torch import nn
from transformers import initialization as init

from .configuration_flt import FLTConfig
from .frequencies import SPREADS, spread_widths


class GaussianMixture(nn.Module):
    """g_t(xi) = exp(-|xi - mu_t|^2 / (2 sigma_t^2)) / (sqrt(2 pi) sigma_t)^l: Gaussians anywhere among the frequencies.

    The real part of its mask is cos(2 pi mu_t . dr) exp(-2 pi^2 sigma_t^2 |dr|^2).
    """

    def __init__(self, config: FLTConfig):
        super().__init__()
        self.config = config
        shape = (config.num_attention_heads, config.num_components)
        self.mean = nn.Parameter(torch.empty(*shape, config.position_dimensions))
        self.log_width = nn.Parameter(torch.empty(shape))
        self.reset()

    def reset(self) -> None:
        """Means spread like the frequencies, and terms as wide as that, so that every frequency has a weight (FL-8)."""
        spread = SPREADS[self.config.frequency_sampling]
        init.normal_(self.mean, std=spread)
        init.constant_(self.log_width, math.log(spread))

    def forward(self, frequencies: torch.Tensor) -> torch.Tensor:
        """(1 or H, r, l) -> (H, T, r)."""
        # Written so that it takes few operations, which on a GPU are launches: the constants stand in the exponent.
        log_width = self.log_width.to(frequencies.dtype)[:, :, None]
        difference = frequencies[:, None] - self.mean.to(frequencies.dtype)[:, :, None]
        distance = (difference * torch.exp(-log_width)[..., None]).square().sum(-1)
        log_height = (log_width + math.log(2 * math.pi) / 2) * -frequencies.shape[-1]
        return torch.exp(torch.sub(log_height, distance, alpha=0.5))


class Local(nn.Module):
    """g_t(xi) = prod_j 2 v_j sinc(2 v_j xi_j)^k_j, sinc(x) = sin(pi x) / (pi x): windows of radius v (eq. 20).

    With k = 1 its mask is the indicator of |dr_j| <= v_j, with k a k-fold convolution of it of radius k v_j. The paper
    prints sin^k / (pi xi), which for even k is odd and has none of the properties that it states; the power belongs to
    the whole factor. At xi = 0 the singularity is removed (FL-7).
    """

    def __init__(self, config: FLTConfig):
        super().__init__()
        self.config = config
        shape = (config.num_attention_heads, config.num_components, config.position_dimensions)
        self.log_radius = nn.Parameter(torch.empty(shape))
        self.reset()

    def reset(self) -> None:
        """Radii spread over the terms, alike in every head (FL-8)."""
        radii = spread_widths(self.config, self.config.num_components).log()[None, :, None]
        init.copy_(self.log_radius, radii.expand(self.log_radius.shape))

    def forward(self, frequencies: torch.Tensor) -> torch.Tensor:
        """(1 or H, r, l) -> (H, T, r)."""
        window = 2 * self.log_radius.to(frequencies.dtype).exp()[:, :, None]
        exponents = self.config.exponents or [1] * self.config.position_dimensions
        waves = torch.sinc(window * frequencies[:, None]).unbind(-1)
        powers = torch.stack([wave**power for wave, power in zip(waves, exponents, strict=True)], dim=-1)
        return (window * powers).prod(-1)


class GaussianBasis(nn.Module):
    """g_t(xi) = (sqrt(2 pi) s_t)^l exp(-2 pi^2 s_t^2 |xi|^2): Gaussians of the distance, for molecules (section 5.3).

    Its mask is exp(-|dr|^2 / (2 s_t^2)).
    """

    def __init__(self, config: FLTConfig):
        super().__init__()
        self.config = config
        self.log_width = nn.Parameter(torch.empty(config.num_attention_heads, config.num_components))
        self.reset()

    def reset(self) -> None:
        """Widths spread over the terms, alike in every head (FL-8)."""
        widths = spread_widths(self.config, self.config.num_components)
        init.copy_(self.log_width, widths.log().expand(self.log_width.shape))

    def forward(self, frequencies: torch.Tensor) -> torch.Tensor:
        """(1 or H, r, l) -> (H, T, r)."""
        width = self.log_width.to(frequencies.dtype).exp()[:, :, None]
        exponent = -2 * math.pi**2 * width.square() * frequencies.square().sum(-1)[:, None]
        return (math.sqrt(2 * math.pi) * width) ** frequencies.shape[-1] * torch.exp(exponent)


class Constant(nn.Module):
    """g / p = 1: a shift-invariant kernel, whose frequencies are drawn from its own density (section 4.3)."""

    def forward(self, frequencies: torch.Tensor) -> torch.Tensor:
        """(1 or H, r, l) -> (1 or H, 1, r)."""
        return torch.ones_like(frequencies[:, None, :, 0])


def make_spectrum(config: FLTConfig) -> nn.Module:
    """The terms that config.spectral_kind names."""
    if config.spectral_kind == "kernel":
        return Constant()
    kinds = {"gaussian_mixture": GaussianMixture, "local": Local, "gaussian_basis": GaussianBasis}
    return kinds[config.spectral_kind](config)
