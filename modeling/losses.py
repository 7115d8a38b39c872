"""Losses of the heads: sums over what has a label, divided by the items of the whole global batch."""

import torch
from torch import nn
from torch.nn import functional

from longmix.kernels import ops
from longmix.kernels.linear_cross_entropy.labels import IGNORED_LABEL
from longmix.kernels.linear_cross_entropy.portable import cross_entropy

from .configuration import MixerConfig
from .precision import narrowed


def classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None = None
) -> torch.Tensor:
    """Cross entropy, logits (..., C) and labels (...), summed over the labels that are not -100 and divided.

    The divisor is num_items_in_batch, or the number of those labels. Without any the loss is 0 and has gradients 0.
    Computed in fp32 or wider.
    """
    labels = labels.flatten()
    total = cross_entropy(logits.flatten(0, -2), labels)
    return total / _divisor(num_items_in_batch, total, (labels != IGNORED_LABEL).sum())


def decoded_loss(
    hidden_states: torch.Tensor,
    decoder: nn.Linear,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`classification_loss` of the logits that a plain linear layer makes of (M, D), which need not be kept, and (M,)
    bool, whether the label (M,) has the largest.
    """
    hidden_states, weight = narrowed(hidden_states, decoder.weight)
    bias = None if decoder.bias is None else decoder.bias.to(weight.dtype)
    total, is_right = ops.linear_cross_entropy(hidden_states, weight, bias, labels)
    return total / _divisor(num_items_in_batch, total, (labels != IGNORED_LABEL).sum()), is_right


def _divisor(
    num_items_in_batch: int | torch.Tensor | None, like: torch.Tensor, own_count: int | torch.Tensor
) -> int | torch.Tensor:
    """Divisor of a summed loss, at least 1."""
    count = own_count if num_items_in_batch is None else num_items_in_batch
    return count.to(like.device).clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)


def sequence_loss(
    config: MixerConfig, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
) -> torch.Tensor:
    """Loss of logits (B, C) for labels of whole samples, (B,) int64 classes or (B,) or (B, C) float targets.

    config.problem_type: regression | single_label_classification | multi_label_classification; None: regression for one
    label, single-label for integer labels, else multi-label.
    """
    kind = config.problem_type
    if kind is None:
        if config.num_labels == 1:
            kind = "regression"
        else:
            kind = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if kind == "single_label_classification":
        return classification_loss(logits, labels, num_items_in_batch)
    targets = labels.view(logits.shape).to(torch.promote_types(logits.dtype, torch.float32))
    wide = logits.to(targets.dtype)
    if kind == "regression":
        losses = functional.mse_loss(wide, targets, reduction="none")
    else:
        losses = functional.binary_cross_entropy_with_logits(wide, targets, reduction="none")
    return losses.mean(1).sum() / _divisor(num_items_in_batch, losses, len(losses))


def forecasting_loss(
    forecast: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None = None
) -> torch.Tensor:
    """Mean squared errors of forecasts (B, horizon, C), summed over the samples and divided.

    The divisor is num_items_in_batch, or the number of samples.
    """
    errors = (forecast - labels.to(forecast.dtype)).square().mean((1, 2))
    return errors.sum() / _divisor(num_items_in_batch, errors, len(errors))


def check_labels(labels: torch.Tensor, shape: torch.Size) -> None:
    """Raise ValueError unless labels have `shape`, that of what they are labels for."""
    if labels.shape != shape:
        raise ValueError(f"labels has shape {tuple(labels.shape)}; allowed: {tuple(shape)}, as the inputs are")


def count_items(labels: torch.Tensor) -> int | torch.Tensor:
    """Number of items with a label: classes that are not -100, or samples with float targets."""
    return len(labels) if labels.is_floating_point() else (labels != IGNORED_LABEL).sum()


def mix_auxiliary_loss(
    loss: torch.Tensor,
    auxiliary_loss: torch.Tensor,
    weight: float,
    own_items: int | torch.Tensor = 1,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """(1 - weight) * loss + weight * auxiliary_loss (Converter, eq. 14).

    A micro-batch with `own_items` of the num_items_in_batch items of a global batch adds that share of the auxiliary
    loss, so that the micro-batches of all ranks add up to it once. None: the micro-batch is the whole batch.
    """
    share = 1 if num_items_in_batch is None else own_items / _divisor(num_items_in_batch, loss, 1)
    return (1 - weight) * loss + weight * share * auxiliary_loss.to(loss.dtype)
