"""Parameter heads: the networks that compute eigenvalues and rotation angles from the tokens."""

import functools
import math
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longmix.kernels.common.documents import document_begins

from ..context import BatchContext
from .configuration_converter import ANGLES_OF_ORDER, ConverterConfig
from .layers import LinearOfUnitRows, ScaledLinear, ScaleNorm, unit_norm

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class Spectrum(NamedTuple):
    """Eigenvalues and angles (A, B, C) of the rotations of neighbouring tokens, in fp32 or float64.

    Args:
        eigenvalues: (B, H, N), from -1 to 1.
        lower: (B, H, L, N - 1, 3), of H_l.
        upper: (B, H, L, N - 1, 3), of H_u.
    """

    eigenvalues: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor


def rotations_of(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles of tokens (B, N, H, L, 2, 3), one rotation of H_l and one of H_u each -> those of Spectrum, as views.

    As in the published code, rotation k of H_l belongs to token k, and that of H_u to token k + 1.
    """
    lower, upper = angles.permute(4, 0, 2, 3, 1, 5)
    return lower[..., :-1, :], upper[..., 1:, :]


class _ScaledParameters(torch.autograd.Function):
    """What tokens have drawn, (B, N, H, 1 + 6 L) -> Spectrum: centre + range * drawn, of the eigenvalues the sine.

    Rotations across the bounds of documents, `begins` (B, 1, 1, N - 1, 1), are by zero. Backward, ranges and the sine's
    derivative are multiplied in where the gradients are put side by side.
    """

    @staticmethod
    def forward(
        ctx,
        drawn: torch.Tensor,
        centres: torch.Tensor,
        ranges: torch.Tensor,
        begins: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parameters = torch.addcmul(centres, ranges, drawn)
        phases, rotations = _parts(parameters)
        for angles in rotations:
            if begins is not None:
                angles.masked_fill_(begins, 0)
        ctx.save_for_backward(phases, ranges, begins)
        return torch.sin(phases, out=phases.new_empty(phases.shape)), *rotations

    @staticmethod
    @once_differentiable
    def backward(ctx, of_eigenvalues: torch.Tensor, *of_rotations: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        phases, ranges, begins = ctx.saved_tensors
        batch, _, positions = phases.shape
        gradient = phases.new_empty(batch, positions, *ranges.shape)
        # Where the last and the first token have a rotation that there is not.
        gradient[:, :: max(positions - 1, 1)].zero_()
        of_phases, of_angles = _parts(gradient)
        _multiply_into(of_phases, of_eigenvalues, phases.cos())
        scales = ranges[:, 1:].unflatten(-1, (-1, 2, 1, 3)).permute(2, 0, 1, 3, 4)
        for of_rotation, scale, into in zip(of_rotations, scales, of_angles, strict=True):
            _multiply_into(into, of_rotation, scale)
            if begins is not None:
                into.masked_fill_(begins, 0)
        return gradient, None, None, None


def _multiply_into(result: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    """result = one * other, in one pass; compilers do not trace results whose rows are apart, and make one of two."""
    if torch.compiler.is_compiling():
        result.copy_(one * other)
    else:
        torch.mul(one, other, out=result)


def _parts(parameters: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Views of (B, N, H, 1 + 6 L): the eigenvalues' part (B, H, N), and the rotations'."""
    return parameters[..., 0].transpose(1, 2), rotations_of(parameters[..., 1:].unflatten(-1, (-1, 2, 3)))


def bounds_of_documents(context: BatchContext) -> torch.Tensor | None:
    """(B, 1, 1, N - 1, 1) bool, true where two tokens next to each other belong to two documents; None without any."""
    documents = context.document_ids
    if documents is None:
        return None
    begins = context.once(("document begins",), functools.partial(document_begins, documents))
    return begins[:, None, None, 1:, None]


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

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> Spectrum:
        """(B, N, D) -> eigenvalues and angles."""
        config = self.config
        drawn = self.projection(hidden_states).unflatten(-1, (config.num_attention_heads, -1))
        # The centres are added here in full precision: next to a quarter turn bf16 has no room for small ranges.
        # They are the same in all layers.
        own = context.once(("centres and ranges", drawn.dtype), functools.partial(self._centres_and_ranges, drawn))
        return Spectrum(*_ScaledParameters.apply(drawn, *own, bounds_of_documents(context)))

    def _centres_and_ranges(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> Spectrum:
        """(B, N, D) -> eigenvalues and angles."""
        config = self.config
        split = (config.num_attention_heads, -1)
        eigenvalues = self.eigenvalues(hidden_states).unflatten(-1, split).mean(-1).transpose(1, 2)
        channels = unit_norm(self.eigenvectors(hidden_states), config.layer_norm_eps).unflatten(-1, split)
        pooled = functional.adaptive_avg_pool1d(channels.flatten(0, 1), ANGLES_OF_ORDER * config.orders)
        pooled = pooled.unflatten(0, hidden_states.shape[:2]).unflatten(-1, (config.orders, 2, 3))
        alpha, beta, gamma = (math.pi * pooled).unbind(-1)
        rotations = rotations_of(torch.stack([alpha + beta, alpha - beta, gamma], -1))
        begins = bounds_of_documents(context)
        if begins is not None:
            rotations = (torch.where(begins, 0.0, angles) for angles in rotations)
        return Spectrum(eigenvalues, *rotations)


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
