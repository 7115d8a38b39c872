"""Converter's rotations of tokens in Triton: those of givens_mix, whose tables are made of what a head has drawn."""

import torch

from ..givens_mix.gpu_kernels import Drawn, mix, unmix


def token_givens(value, drawn, coefficients, centres, ranges, begins, lengths, planes, without_own):
    """The result, u_0, and what the rotations keep; see operator.py."""
    batch, positions, heads, _ = drawn.shape
    turns = drawn.new_empty(batch, heads, positions, dtype=torch.promote_types(drawn.dtype, torch.float32))
    own = Drawn(centres, ranges, coefficients, begins, turns)
    result, *kept = mix([drawn] * 3, _strides(drawn, parts=True), own, value, lengths, planes, without_own)
    return result, turns, *kept


def token_givens_backward(
    gradient, value, coefficients, ranges, begins, lengths, turns, tables, inflows, couplings, planes, without_own
):
    """Gradients of value, drawn and coefficients."""
    batch, _, positions = turns.shape
    of_drawn = turns.new_empty(batch, positions, *ranges.shape)
    own = Drawn(None, ranges, coefficients, begins, turns)
    arguments = gradient, value, lengths, tables, inflows, couplings, planes, without_own
    of_value, of_coefficients = unmix([of_drawn] * 3, _strides(of_drawn, parts=False), own, *arguments)
    return of_value, of_drawn, turns.new_empty(0) if of_coefficients is None else of_coefficients


def _strides(drawn: torch.Tensor, parts: bool) -> list[int]:
    """Of upper, lower and phase, all in drawn (B, N, H, 7): of samples, heads, rows and, but of the phase, parts."""
    sample, row, head, part = drawn.stride()
    of_angles = [sample, head, row, *([part] if parts else [])]
    return [*of_angles, *of_angles, sample, head, row]
