"""Paramixer's product of sparse factors in C++ (cpu.cpp)."""

import torch

from ..build import call, library

SOURCE = "link_mix/cpu.cpp"


def load() -> None:
    """Compile the first kernel unless that has been done. Raises BuildError."""
    library(SOURCE, "forward", torch.float32)


def forward(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    start: torch.Tensor,
    length: torch.Tensor,
    wrap: bool,
) -> torch.Tensor:
    """All factors on value (B, N, D); see operator.py."""
    result = torch.empty_like(value)
    arguments = (value, weights, offsets, start, length, result, *_shape(value, weights, wrap))
    call(SOURCE, "forward", value.dtype, *arguments)
    return result


def backward(
    gradient: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    start: torch.Tensor,
    length: torch.Tensor,
    wrap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of value and weights."""
    of_value, of_weights = torch.empty_like(value), torch.empty_like(weights)
    call(
        SOURCE,
        "backward",
        value.dtype,
        *(gradient, value, weights, offsets, start, length, of_value, of_weights),
        *_shape(value, weights, wrap),
    )
    return of_value, of_weights


def _shape(value: torch.Tensor, weights: torch.Tensor, wrap: bool) -> tuple[int, ...]:
    return (*value.shape, *weights.shape[2:], int(wrap))
