"""Converter's product of Givens rotations as an operator of torch."""

import torch

from ..operators import differentiate, operator
from .portable import restrict


def givens_mix(
    kernels: str,
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.givens_mix`."""
    working = value.to(torch.promote_types(value.dtype, torch.float32))
    # Phases add up over the sequence, and angles may be large: they are small tables, kept in float64.
    upper, lower, phase = (angles.to(torch.float64).contiguous() for angles in (upper, lower, phase))
    order = None if permutation is None else restrict(permutation, lengths).contiguous()
    # A linear layer that makes all real parts and then all imaginary parts leaves the pairs apart: no copy for that.
    planes = not working.is_contiguous() and working.permute(0, 1, 4, 2, 3).is_contiguous()
    working = working.permute(0, 1, 4, 2, 3) if planes else working.contiguous()
    mixed = _forward(kernels, working, upper, lower, phase, lengths, order, planes)
    return (mixed.permute(0, 1, 3, 4, 2) if planes else mixed).to(value.dtype)


@operator(__package__, "givens_mix")
def _forward(
    kernels: str,
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> torch.Tensor:
    """Value (B, N, H, d, 2), or (B, N, 2, H, d) if `planes`, fp32 or float64; angles and phase as in ops, float64;
    order (1 or B, L, N), the valid rows of each permutation first. All are contiguous.
    """
    return torch.empty_like(value)


@operator(__package__, "givens_mix_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    mixed: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, upper, lower and phase; the stages are undone from the result `mixed`."""
    return tuple(torch.empty_like(tensor) for tensor in (mixed, upper, lower, phase))


def _keep(output, value, *arguments):
    return output, *arguments


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments), _keep)
