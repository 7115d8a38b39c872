"""The cross entropy of a linear layer's logits by its definition, in float64."""

import torch

from .labels import IGNORED_LABEL, refuse_other_labels


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.linear_cross_entropy`."""
    refuse_other_labels(labels, len(weight))
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    counts = labels != IGNORED_LABEL
    logits, chosen = logits[counts], labels[counts]
    total = (logits.logsumexp(1) - logits.gather(1, chosen[:, None])[:, 0]).sum()
    # The first of the largest.
    order = torch.arange(logits.shape[1], 0, -1, device=logits.device)
    first = ((logits == logits.amax(1, keepdim=True)) * order).argmax(1)
    are_right = torch.zeros_like(counts)
    are_right[counts] = first == chosen
    return total.to(torch.promote_types(hidden.dtype, torch.float32)), are_right
