"""What Paramixer's links mix: a network on each position."""

import torch
from torch import nn
from torch.nn import functional

from longmix.kernels.selection import stands_for

from ..plain_linear import are_bare, linear
from ..precision import narrowed
from .configuration_paramixer import ParamixerConfig
from .links import PublishedLinear


class ValueNetwork(nn.Module):
    """g: linear, GELU, linear on each position (Paramixer, section 3.3)."""

    def __init__(self, config: ParamixerConfig):
        super().__init__()
        # The paper's block has no norm: the usual small weights would make its signal vanish.
        linear = PublishedLinear if config.block_style == "paper" else nn.Linear
        self.inner = linear(config.hidden_size, config.value_hidden_size)
        self.outer = linear(config.value_hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D)."""
        inner = linear(self.inner, hidden_states)
        if stands_for(inner.device) != "cpu" and are_bare([self.outer]):
            return _Outer.apply(*narrowed(inner, self.outer.weight, self.outer.bias))
        return linear(self.outer, functional.gelu(inner))


class _Outer(torch.autograd.Function):
    """GELU and the second layer on a GPU; the GELU is made again backward, and not kept beside what goes into it."""

    @staticmethod
    def forward(ctx, inner: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inner, weight)
        return functional.linear(functional.gelu(inner), weight, bias)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inner, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_weight = rows.mT @ functional.gelu(inner).flatten(0, -2)
        of_inner = torch.ops.aten.gelu_backward(gradient @ weight, inner)
        return of_inner, of_weight, rows.sum(0)
