"""The cross entropy of a linear layer's logits, which need not be kept: what it means."""

import torch

from ..common.arguments import as_integers
from ..selection import select
from .portable import linear_cross_entropy as portable
from .reference import linear_cross_entropy as reference


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropies of the logits z = hidden weight^T + bias, log sum_v exp(z_v) - z_label, summed over all rows.

    Args:
        hidden: (M, D), any floating dtype.
        weight: (V, D), of the same dtype; V at least 1.
        bias: (V,), of the same dtype; None: no bias.
        labels: (M,) integers, of 0 .. V - 1; IGNORED_LABEL: the row does not count.

    Returns:
        The sum, a scalar in fp32, in float64 for float64; 0, with gradients 0, where no row counts. And (M,) bool,
        whether the label has the largest logit, of equal ones the first; False for rows that do not count. Where the
        loss of a row is no number, what stands there means nothing.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together, labels that are no integers.
        IndexError: on a CPU, a label that is no row of `weight`; on a GPU PyTorch ends the process.
    """
    if hidden.dim() != 2:
        raise ValueError(f"hidden has shape {tuple(hidden.shape)}; needed: (M, D)")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[1] or weight.shape[0] == 0:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; needed: (V, {hidden.shape[1]}), V at least 1")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; needed: {tuple(weight.shape[:1])}")
    if not hidden.is_floating_point():
        raise ValueError(f"hidden has dtype {hidden.dtype}; needed: a floating dtype")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dtype, tensor.device) != (hidden.dtype, hidden.device):
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, on {tensor.device}; needed: {hidden.dtype}, on {hidden.device}, as "
                "hidden has"
            )
    labels = as_integers("labels", labels, hidden.device, tuple(hidden.shape[:1]))
    run = select("linear_cross_entropy", hidden.device, {"portable": portable, "reference": reference})
    return run(hidden, weight, bias, labels)
