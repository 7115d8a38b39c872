"""Converter's product of Givens rotations as an operator of torch."""

import torch

from ..common.rows import keep_valid, valid_rows
from ..operators import differentiate, operator
from . import chunks
from .own import subtract_own
from .portable import restrict


def givens_mix(
    kernels: str,
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
    without_own: bool,
) -> torch.Tensor:
    """See `longmix.kernels.ops.givens_mix`."""
    planes = chunks.in_planes(value)
    if kernels == "gpu_kernels" and permutation is None and upper.shape[2] == 1:
        given = value.permute(0, 1, 4, 2, 3) if planes else value.contiguous()
        mixed, *_ = _forward_chunked(kernels, given, upper, lower, phase, lengths, planes, without_own)
        return mixed.permute(0, 1, 3, 4, 2) if planes else mixed
    given = value.permute(0, 1, 4, 2, 3) if planes else value.contiguous()
    given = given.to(torch.promote_types(value.dtype, torch.float32))
    if without_own:
        valid = valid_rows(lengths, value.shape[1])
        given, phase = keep_valid(given, valid), keep_valid(phase, valid, axis=2)
    order = None if permutation is None else restrict(permutation, lengths).contiguous()
    # Phases add up over the sequence, and angles may be large: they are small tables, kept in float64.
    tables = (angles.to(torch.float64).contiguous() for angles in (upper, lower, phase))
    mixed = _forward(kernels, given, *tables, lengths, order, planes)
    if planes:
        given, mixed = given.permute(0, 1, 3, 4, 2), mixed.permute(0, 1, 3, 4, 2)
    if without_own:
        mixed = subtract_own(mixed, given, phase)
    return mixed.to(value.dtype)


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


# One order without a permutation on a GPU: the value is kept, and what its chunks hand to each other.


@operator(__package__, "givens_mix_chunked")
def _forward_chunked(
    kernels: str,
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    planes: bool,
    without_own: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value (B, N, H, d, 2), or (B, N, 2, H, d) if `planes`, contiguous, of any floating dtype; angles and phase as in
    ops. The result, and what is kept of its chunks: see chunks.py.
    """
    return torch.empty_like(value), *chunks.kept_of(value, upper.shape[1])


@operator(__package__, "givens_mix_chunked_backward")
def _backward_chunked(
    kernels: str,
    gradient: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    tables: torch.Tensor,
    inflows: torch.Tensor,
    couplings: torch.Tensor,
    planes: bool,
    without_own: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, and in fp32 of upper, lower and phase."""
    (batch, positions), heads = value.shape[:2], tables.shape[1]
    angles = batch, heads, 1, positions - 1, 3
    return torch.empty_like(value), *(tables.new_empty(size) for size in (angles, angles, (batch, heads, positions)))


def _keep_chunked(outputs, value, upper, lower, phase, lengths, planes, without_own):
    _, *kept = outputs
    return value, lengths, *kept, planes, without_own, [angles.dtype for angles in (upper, lower, phase)]


def _derivative_chunked(kernels, needed, gradient, *arguments):
    *arguments, dtypes = arguments
    of_value, *of_angles = _backward_chunked(kernels, gradient, *arguments)
    return of_value, *(found.to(dtype) for found, dtype in zip(of_angles, dtypes, strict=True))


differentiate(_forward_chunked, _derivative_chunked, _keep_chunked)
