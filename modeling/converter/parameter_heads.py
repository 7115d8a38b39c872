"""Parameter heads: the networks that compute eigenvalues and rotation angles from tokens, and mix values by them."""

import functools
import math

import torch
from torch import nn
from torch.nn import functional

from longmix.kernels import ops
from longmix.kernels.common.chebyshev import chebyshev_series
from longmix.kernels.common.devices import must_be_deterministic
from longmix.kernels.common.documents import document_begins
from longmix.kernels.token_givens.parameters import rotations_of

from ..context import BatchContext
from ..plain_linear import are_unwatched
from .configuration_converter import ANGLES_OF_ORDER, ConverterConfig
from .layers import LinearOfUnitRows, ScaledLinear, ScaleNorm, unit_norm

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


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
        std = config.hidden_size**-0.5
        self.projection = LinearOfUnitRows(config.hidden_size, outputs, std, config.layer_norm_eps)

    def joins(self, hidden_states: torch.Tensor) -> bool:
        """Whether the gradient of others who read the tokens can be added up with the head's own in one pass; who
        watches head or projection sees them as they are.
        """
        plain = type(self.projection) is LinearOfUnitRows and are_unwatched([self, self.projection])
        return plain and hidden_states.requires_grad

    def forward(
        self, hidden_states: torch.Tensor, with_tokens: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Tokens (B, N, D) that are zero on padding -> the u, (B, N, H, 1 + 6 L), in fp32 or wider. `with_tokens`, for
        a head that `joins`: the tokens besides, for others.
        """
        if with_tokens:
            drawn, hidden_states = self.projection(hidden_states, with_input=True)
        else:
            drawn = self.projection(hidden_states)
        drawn = drawn.unflatten(-1, (self.config.num_attention_heads, -1))
        return (drawn, hidden_states) if with_tokens else drawn

    def mix(
        self,
        value: torch.Tensor,
        drawn: torch.Tensor,
        context: BatchContext,
        coefficients: torch.Tensor | None,
        permutation: torch.Tensor | None,
        without_own: bool,
    ) -> torch.Tensor:
        """Mix value (B, N, H, d, 2) by what `forward` has drawn.

        `coefficients` (H, K + 1) of Chebyshev polynomials of the eigenvalues; None: the eigenvalues themselves. The
        others as in `longmix.kernels.ops.givens_mix`.
        """
        # The centres are added in full precision: next to a quarter turn bf16 has no room for small ranges. They are
        # the same in all layers.
        own = functools.partial(self.centres_and_ranges, drawn)
        centres, ranges = context.once(("centres and ranges", drawn.dtype), own)
        return ops.token_givens_mix(
            value, drawn, coefficients, centres, ranges, begins_of(context), context.lengths, permutation, without_own
        )

    def centres_and_ranges(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What outputs (H, 1 + 6 L) are added to, and multiplied by."""
        config = self.config
        heads, device = config.num_attention_heads, like.device
        limits = math.log(config.smallest_angle_range), math.log(config.largest_angle_range)
        ranges = torch.linspace(*limits, heads, device=device, dtype=like.dtype).exp()
        turns = torch.arange(heads, device=device, dtype=like.dtype) * GOLDEN_RATIO
        ones, zeros = torch.ones_like(ranges), torch.zeros_like(ranges)
        centres = [zeros, 2 * math.pi * turns.frac(), math.pi / 2 + ranges]
        rotations = 2 * config.orders
        return (
            torch.stack([zeros, *centres * rotations], -1),
            torch.stack([ones, *[ranges, ranges, ranges / 2] * rotations], -1),
        )


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

    def joins(self, hidden_states: torch.Tensor) -> bool:
        """See LinearHead."""
        return False

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens (B, N, D) that are zero on padding -> eigenvalues (B, H, N), lower and upper (B, H, L, N - 1, 3)."""
        config = self.config
        split = (config.num_attention_heads, -1)
        eigenvalues = self.eigenvalues(hidden_states).unflatten(-1, split).mean(-1).transpose(1, 2)
        channels = unit_norm(self.eigenvectors(hidden_states), config.layer_norm_eps).unflatten(-1, split)
        pooled = _means_of_groups(channels, ANGLES_OF_ORDER * config.orders).unflatten(-1, (config.orders, 2, 3))
        alpha, beta, gamma = (math.pi * pooled).unbind(-1)
        return eigenvalues, *rotations_of(torch.stack([alpha + beta, alpha - beta, gamma], -1))

    def mix(
        self,
        value: torch.Tensor,
        drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        context: BatchContext,
        coefficients: torch.Tensor | None,
        permutation: torch.Tensor | None,
        without_own: bool,
    ) -> torch.Tensor:
        """See LinearHead."""
        eigenvalues, *rotations = drawn
        begins = begins_of(context)
        if begins is not None:
            between = begins[:, None, None, 1:, None]
            rotations = (torch.where(between, 0.0, angles) for angles in rotations)
        lower, upper = rotations
        phase = eigenvalues if coefficients is None else chebyshev_series(eigenvalues, coefficients)
        return ops.givens_mix(value, upper, lower, phase, context.lengths, permutation, without_own)


def _means_of_groups(channels: torch.Tensor, groups: int) -> torch.Tensor:
    """(..., C) -> (..., groups): groups of C / groups channels, which overlap in one where that is no integer."""
    if not must_be_deterministic(channels):
        # Of three axes the first may be empty, of two none.
        return functional.adaptive_avg_pool1d(channels.flatten(0, -3), groups).unflatten(0, channels.shape[:-2])
    count = channels.shape[-1]
    bounds = [(group * count // groups, -(-(group + 1) * count // groups)) for group in range(groups)]
    return torch.stack([channels[..., first:end].mean(-1) for first, end in bounds], -1)


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


def begins_of(context: BatchContext) -> torch.Tensor | None:
    """(B, N) bool, true on the first token of each document; None without any."""
    documents = context.document_ids
    if documents is None:
        return None
    return context.once(("document begins",), functools.partial(document_begins, documents))


HEADS = {"linear": LinearHead, "siren": SirenHead}
