"""The cross entropy of a linear layer's logits in plain PyTorch, which makes all of them."""

import torch
from torch.nn import functional

from ..linear.interface import linear
from .labels import IGNORED_LABEL


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.linear_cross_entropy`."""
    logits = linear(hidden, weight, bias)
    return cross_entropy(logits, labels), are_right(logits, labels)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the cross entropies of logits (M, V) for labels (M,), computed in fp32 or float64."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def are_right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(M,) bool, whether the label has the first of the largest logits (M, V)."""
    # The same places as those of argmax, which takes several times as long on a CPU.
    return logits.detach().max(dim=1).indices == labels
