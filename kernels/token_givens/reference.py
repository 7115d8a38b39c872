"""Converter's rotations of tokens with angles that a linear head has drawn, written out in float64."""

import torch

from ..givens_mix.reference import givens_mix


def token_givens_mix(
    value: torch.Tensor,
    drawn: torch.Tensor,
    coefficients: torch.Tensor | None,
    centres: torch.Tensor,
    ranges: torch.Tensor,
    begins: torch.Tensor | None,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
    without_own: bool,
) -> torch.Tensor:
    """See `longmix.kernels.ops.token_givens_mix`."""
    own = (centres.detach().double() + ranges.detach().double() * drawn.double()).transpose(1, 2)
    eigenvalues, angles = own[..., 0].sin(), own[..., 1:].unflatten(-1, (-1, 2, 3)).permute(4, 0, 1, 3, 2, 5)
    lower, upper = angles[0, ..., :-1, :], angles[1, ..., 1:, :]
    if begins is not None:
        apart = begins[:, None, None, 1:, None]
        lower, upper = torch.where(apart, 0.0, lower), torch.where(apart, 0.0, upper)
    phase = eigenvalues
    if coefficients is not None:
        terms = [torch.ones_like(eigenvalues), eigenvalues]
        while len(terms) < coefficients.shape[1]:
            terms.append(2 * eigenvalues * terms[-1] - terms[-2])
        phase = sum(weight[:, None] * term for weight, term in zip(coefficients.double().unbind(1), terms, strict=True))
    return givens_mix(value, upper, lower, phase, lengths, permutation, without_own)
