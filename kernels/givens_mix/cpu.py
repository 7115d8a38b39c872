"""Converter's product of Givens rotations in C++ (cpu.cpp)."""

import torch

from ..build import call, library
from ..common.arguments import check_permutation

SOURCE = "givens_mix/cpu.cpp"


def load() -> None:
    """Compile the first kernel unless that has been done. Raises BuildError."""
    library(SOURCE, "forward", torch.float32)


def forward(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> torch.Tensor:
    """Phi^-1 exp(i phase) Phi value; see operator.py. Raises ValueError for an order that is no permutation."""
    if order is not None:
        check_permutation(order, value.shape[1])  # in a compiled graph nothing else has
    mixed = torch.empty_like(value)
    arguments = (value, upper, lower, phase, lengths, order, mixed, *_shape(value, upper, order, planes))
    call(SOURCE, "forward", value.dtype, *arguments)
    return mixed


def backward(
    gradient: torch.Tensor,
    mixed: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, upper, lower and phase from that of the result `mixed`, and from the result itself."""
    of_value, of_angles = torch.empty_like(mixed), [torch.zeros_like(angles) for angles in (upper, lower, phase)]
    call(
        SOURCE,
        "backward",
        mixed.dtype,
        *(gradient, mixed, upper, lower, phase, lengths, order, of_value, *of_angles),
        *_shape(mixed, upper, order, planes),
    )
    return of_value, *of_angles


def _shape(value: torch.Tensor, upper: torch.Tensor, order: torch.Tensor | None, planes: bool) -> tuple[int, ...]:
    batch, positions = value.shape[:2]
    heads, width = value.shape[3:] if planes else value.shape[2:4]
    return batch, positions, heads, width, upper.shape[2], int(planes), 1 if order is None else order.shape[0]
