"""Converter's rotations of tokens with angles that a linear head has drawn, as operators of torch."""

import torch

from ..givens_mix import chunks
from ..givens_mix.operator import givens_mix
from ..operators import differentiate, operator
from .parameters import parameters_of


def token_givens_mix(
    kernels: str,
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
    if kernels == "cpu_kernels" or permutation is not None or drawn.shape[3] > 7:
        parameters = parameters_of(drawn, coefficients, centres, ranges, begins)
        return givens_mix(kernels, value, *parameters, lengths, permutation, without_own)
    planes, wide = chunks.in_planes(value), torch.promote_types(drawn.dtype, torch.float32)
    given = value.permute(0, 1, 4, 2, 3) if planes else value.contiguous()
    tables = drawn, coefficients, centres.to(wide), ranges.to(wide), begins
    tables = (None if table is None else table.contiguous() for table in tables)
    mixed, *_ = _forward(kernels, given, *tables, lengths, planes, without_own)
    return mixed.permute(0, 1, 3, 4, 2) if planes else mixed


@operator(__package__, "token_givens")
def _forward(
    kernels: str,
    value: torch.Tensor,
    drawn: torch.Tensor,
    coefficients: torch.Tensor | None,
    centres: torch.Tensor,
    ranges: torch.Tensor,
    begins: torch.Tensor | None,
    lengths: torch.Tensor | None,
    planes: bool,
    without_own: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value (B, N, H, d, 2), or (B, N, 2, H, d) if `planes`; the others as in ops, for one order. All are contiguous;
    centres and ranges are fp32 or float64, as the results.

    The result, u_0 (B, H, N) in fp32 or float64, and what `givens_mix` keeps of its chunks.
    """
    heads = drawn.shape[2]
    batch, positions = value.shape[:2]
    return (
        torch.empty_like(value),
        drawn.new_empty(batch, heads, positions, dtype=torch.promote_types(drawn.dtype, torch.float32)),
        *chunks.kept_of(value, heads),
    )


@operator(__package__, "token_givens_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    value: torch.Tensor,
    coefficients: torch.Tensor | None,
    ranges: torch.Tensor,
    begins: torch.Tensor | None,
    lengths: torch.Tensor | None,
    turns: torch.Tensor,
    tables: torch.Tensor,
    inflows: torch.Tensor,
    couplings: torch.Tensor,
    planes: bool,
    without_own: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, and in the dtype of `turns`, u_0, of drawn and coefficients, (0,) without."""
    batch, _, positions = turns.shape
    of_drawn = turns.new_empty(batch, positions, *ranges.shape)
    return torch.empty_like(value), of_drawn, turns.new_empty(0 if coefficients is None else coefficients.shape)


def _keep(outputs, value, drawn, coefficients, centres, ranges, begins, lengths, planes, without_own):
    return value, coefficients, ranges, begins, lengths, *outputs[1:], planes, without_own, drawn.dtype


def _derivative(kernels, needed, gradient, value, coefficients, *others):
    *arguments, dtype = others
    of_value, of_drawn, of_coefficients = _backward(kernels, gradient, value, coefficients, *arguments)
    return of_value, of_drawn.to(dtype), None if coefficients is None else of_coefficients.to(coefficients.dtype)


differentiate(_forward, _derivative, _keep)
