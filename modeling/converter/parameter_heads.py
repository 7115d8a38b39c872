"""Parameter heads: the networks that compute eigenvalues and rotation angles from the tokens."""

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from .configuration_converter import ANGLES_OF_ORDER, ConverterConfig
from .layers import ScaledLinear, ScaleNorm, unit_norm

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class Spectrum(NamedTuple):
    """Eigenvalues and angles of every token, in fp32 or float64.

    Args:
        eigenvalues: (B, H, N), from -1 to 1.
        angles: (B, H, L, N, 2, 3), (A, B, C) for a rotation of H_l and for one of H_u.
    """

    eigenvalues: torch.Tensor
    angles: torch.Tensor


class LinearHead(nn.Module):
    """One linear map u of the normalised token: eigenvalue sin(u_0), and angles within s_h of the centre of head h,

        A = s_h u_1,    B = omega_h + s_h u_2,    C = pi / 2 + s_h (1 + u_3 / 2).

    The u start with a standard deviation of 1 at every width. The ranges s_h lie in geometric steps between
    smallest_angle_range and largest_angle_range. A quarter turn hands the carried row on unchanged, so that a head
    starts as a chain of positions from which s_h^2 leaks away at each. B is the phase that the carried row gets at each
    position: kept close to omega_h, it tells distances apart, where phases that differ from token to token would drown
    what comes from afar. The frequencies omega_h are spread over the circle by the golden ratio, so that heads of
    similar ranges have unlike ones.
    """

    def __init__(self, config: ConverterConfig):
        super().__init__()
        self.config = config
        outputs = config.num_attention_heads * (1 + ANGLES_OF_ORDER * config.orders)
        self.projection = ScaledLinear(config.hidden_size, outputs, std=config.hidden_size**-0.5)

    def forward(self, hidden_states: torch.Tensor) -> Spectrum:
        """(B, N, D) -> eigenvalues and angles."""
        config = self.config
        heads = config.num_attention_heads
        wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        normalised = functional.rms_norm(wide, (config.hidden_size,), eps=config.layer_norm_eps)
        drawn = self.projection(normalised.to(hidden_states.dtype)).to(wide.dtype)
        drawn = drawn.unflatten(-1, (heads, -1)).transpose(1, 2)
        a, b, c = drawn[..., 1:].unflatten(-1, (config.orders, 2, 3)).movedim(3, 2).unbind(-1)
        # The centres are added here in full precision: next to a quarter turn bf16 has no room for small ranges.
        limits = math.log(config.smallest_angle_range), math.log(config.largest_angle_range)
        ranges = torch.linspace(*limits, heads, device=wide.device, dtype=wide.dtype).exp()
        turns = torch.arange(heads, device=wide.device, dtype=wide.dtype) * GOLDEN_RATIO
        ranges, frequencies = ranges[:, None, None, None], (2 * math.pi * turns.frac())[:, None, None, None]
        angles = [ranges * a, frequencies + ranges * b, math.pi / 2 + ranges * (1 + c / 2)]
        return Spectrum(drawn[..., 0].sin(), torch.stack(angles, -1))


class SirenHead(nn.Module):
    """The paper's head: two networks of sines, averaged over channels (Converter, eq. 4, and its published code).

    - The eigenvalue of a head is the mean over its channels of the first network.
    - The second one, divided by its norm, is averaged in 6 L groups of channels of each head: alpha, beta and gamma in
      turns, for H_l and H_u, with A = pi (alpha + beta), B = pi (alpha - beta), C = pi gamma. Each token gets its own
      (CV-4); the published code mixes up tokens and angles, and has a seventh angle, which cancels (CV-5).
    """

    def __init__(self, config: ConverterConfig):
        super().__init__()
        self.config = config
        self.eigenvalues = Siren(config)
        self.eigenvectors = Siren(config)

    def forward(self, hidden_states: torch.Tensor) -> Spectrum:
        """(B, N, D) -> eigenvalues and angles."""
        config = self.config
        split = (config.num_attention_heads, -1)
        eigenvalues = self.eigenvalues(hidden_states).unflatten(-1, split).mean(-1).transpose(1, 2)
        channels = unit_norm(self.eigenvectors(hidden_states), config.layer_norm_eps).unflatten(-1, split)
        pooled = functional.adaptive_avg_pool1d(channels.flatten(0, 1), ANGLES_OF_ORDER * config.orders)
        pooled = pooled.unflatten(0, hidden_states.shape[:2]).unflatten(-1, (config.orders, 2, 3))
        alpha, beta, gamma = (math.pi * pooled).permute(0, 2, 3, 1, 4, 5).unbind(-1)
        return Spectrum(eigenvalues, torch.stack([alpha + beta, alpha - beta, gamma], -1))


class Siren(nn.Module):
    """sin(norm(sin(x W_1 + b_1)) W_2 + b_2), with weights uniform in +-sqrt(6 / D) at first."""

    def __init__(self, config: ConverterConfig):
        super().__init__()
        width = config.hidden_size
        self.inner = ScaledLinear(width, width, std=math.sqrt(2 / width))
        self.norm = ScaleNorm(width, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.outer = ScaledLinear(width, width, std=math.sqrt(2 / width))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D) in fp32 or wider, from -1 to 1."""
        hidden = self.dropout(self.norm(self.inner(hidden_states).sin()))
        outer = self.outer(hidden)
        return outer.to(torch.promote_types(outer.dtype, torch.float32)).sin()


HEADS = {"linear": LinearHead, "siren": SirenHead}
