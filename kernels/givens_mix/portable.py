"""Converter's product of Givens rotations as real matrix products over chunks of rows.

All phases are gathered into diagonals (`phases`), so that real and imaginary parts go through the same real rotations,
many rows at a time (`blocks`), stage by stage (`stages`). Nothing but the output is kept for the backward pass.
"""

import torch
from torch.nn import functional

from ..common.rows import keep_valid, valid_rows
from .blocks import whole_chunks
from .own import subtract_own
from .phases import stage_tables
from .stages import Conjugation


def givens_mix(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
    without_own: bool,
) -> torch.Tensor:
    """See `longmix.kernels.ops.givens_mix`."""
    positions = value.shape[1]
    working = torch.float64 if value.dtype == torch.float64 else torch.float32
    with torch.autocast(value.device.type, enabled=False):
        # Phases add up over the sequence, and angles may be large: their tables are small and made in float64.
        upper, lower, phase = (tensor.to(torch.float64) for tensor in (upper, lower, phase))
        valid = valid_rows(lengths, positions)
        if valid is not None:
            both = valid[:, None, None, 1:, None]
            upper, lower = torch.where(both, upper, 0.0), torch.where(both, lower, 0.0)
            phase = torch.where(valid[:, None], phase, 0.0)
            value = keep_valid(value, valid)
        wide = value.to(working)
        x, own = wide.transpose(1, 2), phase
        order = None if permutation is None else restrict(permutation, lengths)
        chunk, rows = whole_chunks(positions, value.device)
        missing = rows - positions
        if missing:
            # Rows that complete the last chunk, turned by zero.
            x = functional.pad(x, (0, 0, 0, 0, 0, missing))
            upper, lower = (functional.pad(angles, (0, 0, 0, missing)) for angles in (upper, lower))
            phase = functional.pad(phase, (0, missing))
            if order is not None:
                behind = torch.arange(positions, rows, device=order.device)
                order = torch.cat([order, behind.expand(*order.shape[:2], -1)], -1)
        rotations, phases = stage_tables(upper, lower, phase, order)
        rotations = functional.pad(rotations, (0, 1)).unflatten(-1, (-1, chunk))
        mixed = Conjugation.apply(x, rotations, phases, order)[:, :, :positions].transpose(1, 2)
        if without_own:
            mixed = subtract_own(mixed, wide, own)
        return keep_valid(mixed.to(value.dtype), valid)


def restrict(permutation: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """(L, N) or (B, L, N) -> (1 or B, L, N): the valid tokens of each sample in their order, then the others."""
    permutation = permutation if permutation.dim() == 3 else permutation[None]
    if lengths is None:
        return permutation
    invalid = (permutation >= lengths[:, None, None]).to(torch.uint8)
    order = invalid.sort(dim=-1, stable=True).indices
    return permutation.expand(order.shape[0], -1, -1).gather(-1, order)
