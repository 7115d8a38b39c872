"""Paramixer's product of sparse factors in C++ (cpu.cpp)."""

import torch

from ..build import INTEGERS, REALS, SIZE, Function
from .rows import clear, prepare

SIZES = (SIZE,) * 6  # B, N, D, M, K, and whether links wrap
FUNCTIONS = {
    "link_mix": Function("link_mix/cpu.cpp", "forward", (*[REALS] * 2, *[INTEGERS] * 3, REALS, *SIZES)),
    "link_mix_backward": Function(
        "link_mix/cpu.cpp", "backward", (*[REALS] * 3, *[INTEGERS] * 3, *[REALS] * 2, *SIZES)
    ),
}


def link_mix(value, weights, offsets, lengths, starts, counts, wrap):
    """All factors on value (B, N, D); see operator.py."""
    *arguments, valid = prepare(value, weights, offsets, lengths, starts, counts)
    result = torch.empty_like(arguments[0])
    FUNCTIONS["link_mix"](*arguments, result, *value.shape, *weights.shape[2:], wrap)
    return clear(result, valid).to(value.dtype)


def link_mix_backward(gradient, value, weights, offsets, lengths, starts, counts, wrap):
    """Gradients of value and weights."""
    *arguments, valid = prepare(value, weights, offsets, lengths, starts, counts)
    of_value, of_weights = (torch.empty_like(tensor) for tensor in arguments[:2])
    gradient = gradient.to(of_value.dtype)
    sizes = *value.shape, *weights.shape[2:], wrap
    FUNCTIONS["link_mix_backward"](gradient, *arguments, of_value, of_weights, *sizes)
    return clear(of_value, valid).to(value.dtype), clear(of_weights, valid).to(weights.dtype)
