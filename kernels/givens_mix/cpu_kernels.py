"""Converter's product of Givens rotations in C++ (cpu.cpp)."""

import torch

from ..build import DOUBLES, INTEGERS, REALS, SIZE, Function
from ..common.arguments import check_permutation

TABLES = (*[DOUBLES] * 3, *[INTEGERS] * 2)  # upper, lower, phase, lengths, order
SIZES = (SIZE,) * 7  # B, N, H, d, L, whether in planes, permutations
FUNCTIONS = {
    "givens_mix": Function("givens_mix/cpu.cpp", "forward", (REALS, *TABLES, REALS, *SIZES)),
    "givens_mix_backward": Function(
        "givens_mix/cpu.cpp", "backward", (REALS, REALS, *TABLES, REALS, *[DOUBLES] * 3, *SIZES)
    ),
}


def givens_mix(value, upper, lower, phase, lengths, order, planes):
    """Phi^-1 exp(i phase) Phi value; see operator.py. Raises ValueError for an order that is no permutation."""
    if order is not None:
        check_permutation(order, value.shape[1])  # in a compiled graph nothing else has
    mixed = torch.empty_like(value)
    sizes = _sizes(value, upper, order, planes)
    FUNCTIONS["givens_mix"](value, upper, lower, phase, lengths, order, mixed, *sizes)
    return mixed


def givens_mix_backward(gradient, mixed, upper, lower, phase, lengths, order, planes):
    """Gradients of value, upper, lower and phase from that of the result `mixed`, and from the result itself."""
    results = torch.empty_like(mixed), *(torch.zeros_like(angles) for angles in (upper, lower, phase))
    sizes = _sizes(mixed, upper, order, planes)
    FUNCTIONS["givens_mix_backward"](gradient, mixed, upper, lower, phase, lengths, order, *results, *sizes)
    return results


def _sizes(value: torch.Tensor, upper: torch.Tensor, order: torch.Tensor | None, planes: bool) -> tuple[int, ...]:
    batch, positions = value.shape[:2]
    heads, width = value.shape[3:] if planes else value.shape[2:4]
    return batch, positions, heads, width, upper.shape[2], planes, 1 if order is None else order.shape[0]
