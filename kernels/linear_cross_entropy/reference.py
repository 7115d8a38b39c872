"""The cross entropy of a linear layer's logits by its definition, in float64."""

import torch

from .portable import IGNORED_LABEL


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.linear_cross_entropy`."""
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    counts = labels != IGNORED_LABEL
    chosen = torch.where(counts, labels, 0)[:, None]
    losses = logits.exp().sum(1).log() - logits.gather(1, chosen)[:, 0]
    total = (losses * counts).sum()
    # The first of the largest.
    order = torch.arange(logits.shape[1], 0, -1, device=logits.device)
    first = ((logits == logits.amax(1, keepdim=True)) * order).argmax(1)
    return total.to(torch.promote_types(hidden.dtype, torch.float32)), (first == labels) & counts
