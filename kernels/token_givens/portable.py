"""Converter's rotations of tokens with angles that a linear head has drawn, in plain PyTorch."""

import torch

from ..givens_mix.portable import givens_mix
from .parameters import parameters_of


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
    parameters = parameters_of(drawn, coefficients, centres, ranges, begins)
    return givens_mix(value, *parameters, lengths, permutation, without_own)
