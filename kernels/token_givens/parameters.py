"""Angles and phases from what a linear head makes of the tokens, in plain PyTorch."""

import torch
from torch.nn import functional

from ..common.chebyshev import chebyshev_series


def parameters_of(
    drawn: torch.Tensor,
    coefficients: torch.Tensor | None,
    centres: torch.Tensor,
    ranges: torch.Tensor,
    begins: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arguments of `longmix.kernels.ops.token_givens_mix` -> upper, lower and phase of `givens_mix`, fp32 or wider."""
    wide = torch.promote_types(drawn.dtype, torch.float32)
    between = None if begins is None else begins[:, None, None, 1:, None]
    scales = centres.to(wide), ranges.to(wide)
    eigenvalues, lower, upper = _ScaledParameters.apply(drawn.to(wide), *scales, between)
    phase = eigenvalues if coefficients is None else chebyshev_series(eigenvalues, coefficients)
    return upper, lower, phase


def rotations_of(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles of tokens (B, N, H, L, 2, 3), one rotation of H_l and one of H_u each -> lower and upper, as views.

    As in the published code, rotation k of H_l belongs to token k, and that of H_u to token k + 1.
    """
    rotations = angles.permute(4, 0, 2, 3, 1, 5)
    return rotations[0, ..., :-1, :], rotations[1, ..., 1:, :]


class _ScaledParameters(torch.autograd.Function):
    """What tokens have drawn, (B, N, H, 1 + 6 L) -> eigenvalues (B, H, N), lower and upper: centre + range * drawn, of
    the eigenvalues the sine.

    Rotations across the bounds of documents, `between` (B, 1, 1, N - 1, 1), are by zero. Backward, ranges and the
    sine's derivative are multiplied in where the gradients are put side by side.
    """

    @staticmethod
    def forward(
        ctx,
        drawn: torch.Tensor,
        centres: torch.Tensor,
        ranges: torch.Tensor,
        between: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parameters = torch.addcmul(centres, ranges, drawn)
        phases, rotations = _parts(parameters)
        for angles in rotations:
            if between is not None:
                angles.masked_fill_(between, 0)
        ctx.save_for_backward(drawn, centres, ranges, between)
        # Compilers forget what a result was written into, and with it how the result lies.
        into = None if torch.compiler.is_compiling() else phases.new_empty(phases.shape)
        return torch.sin(phases, out=into), *rotations

    @staticmethod
    def backward(ctx, of_eigenvalues: torch.Tensor, *of_rotations: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        drawn, centres, ranges, between = ctx.saved_tensors
        phases = torch.addcmul(centres[:, 0], ranges[:, 0], drawn[..., 0])
        by_phases = (phases.cos() * ranges[:, 0]).transpose(1, 2)
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            # Neither compilers nor who differentiates this take results whose rows are apart.
            if between is not None:
                of_rotations = (torch.where(between, 0.0, gradient) for gradient in of_rotations)
            return _joined(of_eigenvalues * by_phases, *of_rotations, ranges[:, 1:]), None, None, None
        gradient = torch.empty_like(drawn, memory_format=torch.contiguous_format)
        # Where the last and the first token have a rotation that there is not.
        gradient[:, :: max(drawn.shape[1] - 1, 1)].zero_()
        of_phases, of_angles = _parts(gradient)
        torch.mul(of_eigenvalues, by_phases, out=of_phases)
        scales = ranges[:, 1:].unflatten(-1, (-1, 2, 1, 3)).permute(2, 0, 1, 3, 4)
        for of_rotation, scale, into in zip(of_rotations, scales, of_angles, strict=True):
            torch.mul(of_rotation, scale, out=into)
            if between is not None:
                into.masked_fill_(between, 0)
        return gradient, None, None, None


def _joined(
    of_phases: torch.Tensor, of_lower: torch.Tensor, of_upper: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Gradients (B, H, N) and (B, H, L, N - 1, 3), these times scales (H, 6 L) -> (B, N, H, 1 + 6 L)."""
    both = torch.stack([functional.pad(of_lower, (0, 0, 0, 1)), functional.pad(of_upper, (0, 0, 1, 0))], 3)
    return torch.cat([of_phases.transpose(1, 2)[..., None], both.permute(0, 4, 1, 2, 3, 5).flatten(3) * scales], 3)


def _parts(parameters: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Views of (B, N, H, 1 + 6 L): the eigenvalues' part (B, H, N), and the rotations'."""
    return parameters[..., 0].transpose(1, 2), rotations_of(parameters[..., 1:].unflatten(-1, (-1, 2, 3)))
