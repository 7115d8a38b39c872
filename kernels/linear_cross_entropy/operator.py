"""The cross entropy of a linear layer's logits as an operator of torch."""

import torch

from ..operators import differentiate, operator
from .portable import linear_cross_entropy as portable


def linear_cross_entropy(
    kernels: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.linear_cross_entropy`."""
    if len(hidden) <= hidden.shape[1]:
        # All logits take no more room than the weight, and passes over its gradient more time than those over them.
        return portable(hidden, weight, bias, labels)
    parameters = [weight] if bias is None else [weight, bias]
    asks = torch.is_grad_enabled()
    of_hidden = asks and hidden.requires_grad
    of_parameters = asks and any(parameter.requires_grad for parameter in parameters)
    bias = None if bias is None else bias.contiguous()
    arguments = hidden.contiguous(), weight.contiguous(), bias, labels, of_hidden, of_parameters
    total, is_right, *_ = _forward(kernels, *arguments)
    return total, is_right


@operator(__package__, "linear_cross_entropy")
def _forward(
    kernels: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    of_hidden: bool,
    of_parameters: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum, which rows are right, and the sum's gradients by hidden, weight and bias where they are asked for: the
    logits are at hand for them now, and would have to be made again later. Those of weight and bias are fp32 or
    float64. All arguments are contiguous.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (
        hidden.new_empty((), dtype=wide),
        labels.new_empty(labels.shape, dtype=torch.bool),
        hidden.new_empty(hidden.shape if of_hidden else (0,)),
        weight.new_empty(weight.shape if of_parameters else (0,), dtype=wide),
        weight.new_empty(weight.shape[:1] if of_parameters and bias is not None else (0,), dtype=wide),
    )


@operator(__package__, "linear_cross_entropy_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    of_hidden: torch.Tensor,
    of_weight: torch.Tensor,
    of_bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients, times that of the sum, in hidden's dtype. An operator, so that second derivatives are refused."""
    return tuple(torch.empty_like(part, dtype=of_hidden.dtype) for part in (of_hidden, of_weight, of_bias))


def _keep(outputs: tuple[torch.Tensor, ...], *arguments: object) -> tuple[torch.Tensor, ...]:
    return outputs[2:]


def _gradients(kernels: str, needed: list[bool], *kept: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    found = _backward(kernels, *kept)
    return tuple(gradient if asked else None for gradient, asked in zip(found, needed[:3], strict=True))


differentiate(_forward, _gradients, _keep)
