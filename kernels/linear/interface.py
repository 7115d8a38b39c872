"""A linear layer: which of torch's libraries multiplies."""

import torch
from torch.nn import functional

from .products import linear as by_onednn
from .products import multiplies


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """inputs weight^T + bias, as `torch.nn.functional.linear` computes it; here oneDNN may multiply (`products.py`).

    Args:
        inputs: (..., I), any floating dtype.
        weight: (O, I).
        bias: (O,); None: no bias.

    Returns:
        (..., O).

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit together.
    """
    if multiplies(inputs, weight, bias):
        return by_onednn(inputs, weight, bias)
    return functional.linear(inputs, weight, bias)
