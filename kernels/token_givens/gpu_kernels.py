"""Converter's rotations of tokens in Triton: the rotations of givens_mix, one launch before them and one behind."""

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from ..givens_mix.gpu_kernels import givens_mix_chunked, givens_mix_chunked_backward
from .programs_gpu import make_angles, of_angles

# Of a block of tokens; heads lie side by side.
ROWS, HEADS = (16, 2) if interpreted() else (64, 8)


def token_givens(value, drawn, coefficients, centres, ranges, begins, lengths, planes, without_own):
    """The result, u_0, and what the rotations keep; see operator.py."""
    batch, positions, heads, _ = drawn.shape
    turns = drawn.new_empty(batch, heads, positions, dtype=torch.promote_types(drawn.dtype, torch.float32))
    phase = torch.empty_like(turns)
    upper, lower = (turns.new_empty(batch, heads, 1, positions - 1, 3) for _ in range(2))
    make_angles[_blocks(turns)](
        *(drawn, coefficients, centres, ranges, begins, upper, lower, phase, turns, positions, heads),
        *(_count(coefficients), ROWS, HEADS),
    )
    result, *kept = givens_mix_chunked(value, upper, lower, phase, lengths, planes, without_own)
    return result, turns, *kept


def token_givens_backward(
    gradient, value, coefficients, ranges, begins, lengths, turns, tables, inflows, couplings, planes, without_own
):
    """Gradients of value, drawn and coefficients."""
    of_value, *of_rotations = givens_mix_chunked_backward(
        gradient, value, lengths, tables, inflows, couplings, planes, without_own
    )
    batch, heads, positions = turns.shape
    grid, count = _blocks(turns), _count(coefficients)
    of_drawn, parts = turns.new_empty(batch, positions, *ranges.shape), turns.new_empty(batch * grid[1], heads, count)
    of_angles[grid](
        *(*of_rotations, turns, coefficients, ranges, begins, of_drawn, parts, positions, heads),
        *(count, ROWS, HEADS),
    )
    return of_value, of_drawn, turns.new_empty(0) if coefficients is None else parts.sum(0)


def _count(coefficients: torch.Tensor | None) -> int:
    return 0 if coefficients is None else coefficients.shape[1]


def _blocks(turns: torch.Tensor) -> tuple[int, ...]:
    """Programs for blocks of tokens and heads (B, H, N)."""
    batch, heads, positions = turns.shape
    return checked(batch, triton.cdiv(positions, ROWS), triton.cdiv(heads, HEADS))
