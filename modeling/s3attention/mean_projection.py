"""A linear layer of the mean of two tensors, which no launch of its own halves."""

import torch
from torch import nn

from longmix.kernels.linear.products import multiplies

from ..plain_linear import are_bare, linear
from ..precision import narrowed


def project_mean(one: torch.Tensor, other: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """layer((one + other) / 2), of tensors (B, N, D) -> (B, N, out)."""
    if not are_bare([layer]) or multiplies(one, layer.weight, layer.bias):
        return linear(layer, (one + other) / 2)
    one, other, weight, bias = narrowed(one, other, layer.weight, layer.bias)
    return _HalvedProjection.apply(one + other, weight, bias)


class _HalvedProjection(torch.autograd.Function):
    """Half of `both` through a linear layer; each product halves what it has added up, before that is rounded."""

    @staticmethod
    def forward(ctx, both: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(both, weight)
        return torch.addmm(bias, both.flatten(0, 1), weight.T, alpha=0.5).view(*both.shape[:2], len(weight))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both, weight = ctx.saved_tensors
        rows = gradient.flatten(0, 1)
        # What is multiplied by zero is not read; it has the shape of the result.
        of_both = torch.addmm(both.flatten(0, 1), rows, weight, beta=0, alpha=0.5).view(both.shape)
        of_weight = torch.addmm(weight, rows.T, both.flatten(0, 1), beta=0, alpha=0.5)
        return of_both, of_weight, rows.sum(0)
