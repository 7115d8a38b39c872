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
    # A linear layer that makes all real parts and then all imaginary parts leaves the pairs apart: no copy for that.
    planes = not value.is_contiguous() and value.permute(0, 1, 4, 2, 3).is_contiguous()
    if kernels == "gpu_kernels" and permutation is None and upper.shape[2] == 1:
        given = value.permute(0, 1, 4, 2, 3) if planes else value.contiguous()
        mixed, *_ = _forward_chunked(kernels, given, upper, lower, phase, lengths, planes, without_own)
        return mixed.permute(0, 1, 3, 4, 2) if planes else mixed
    working = value.to(torch.promote_types(value.dtype, torch.float32))
    if without_own:
        valid = valid_rows(lengths, value.shape[1])
        working, phase = keep_valid(working, valid), keep_valid(phase, valid, axis=2)
    order = None if permutation is None else restrict(permutation, lengths).contiguous()
    # Phases add up over the sequence, and angles may be large: they are small tables, kept in float64.
    tables = (angles.to(torch.float64).contiguous() for angles in (upper, lower, phase))
    given = working.permute(0, 1, 4, 2, 3) if planes else working.contiguous()
    mixed = _forward(kernels, given, *tables, lengths, order, planes)
    mixed = mixed.permute(0, 1, 3, 4, 2) if planes else mixed
    if without_own:
        mixed = subtract_own(mixed, working, phase)
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
    ops. The result, tables (B, H, tables, rows), inflows (B, H, inflows, chunks, d, 2), couplings (B, H, couplings,
    chunks), all fp32: see chunks.py.
    """
    heads, width = value.shape[3:] if planes else value.shape[2:4]
    pairs, count = (value.shape[0], heads), chunks.chunks_of(value.shape[1])
    return (
        torch.empty_like(value),
        value.new_empty(*pairs, chunks.TABLES, chunks.rows_of_tables(value.shape[1]), dtype=torch.float32),
        value.new_empty(*pairs, chunks.INFLOWS, count, width, 2, dtype=torch.float32),
        value.new_empty(*pairs, chunks.COUPLINGS, count, dtype=torch.float32),
    )


@operator(__package__, "givens_mix_chunked_backward")
def _backward_chunked(
    kernels: str,
    gradient: torch.Tensor,
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    tables: torch.Tensor,
    inflows: torch.Tensor,
    couplings: torch.Tensor,
    planes: bool,
    without_own: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, upper, lower and phase; of the three last ones only the shapes and dtypes are read."""
    of_angles = (angles.new_empty(angles.shape) for angles in (upper, lower, phase))
    return torch.empty_like(value), *of_angles


def _keep_chunked(outputs, value, upper, lower, phase, lengths, planes, without_own):
    _, *tables = outputs
    return value, upper, lower, phase, lengths, *tables, planes, without_own


differentiate(
    _forward_chunked, lambda kernels, needed, *arguments: _backward_chunked(kernels, *arguments), _keep_chunked
)
