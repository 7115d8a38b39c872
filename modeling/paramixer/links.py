"""Paramixer's links: the offsets that they lead to, and the networks that weigh them."""

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels.selection import stands_for

from ..plain_linear import linear
from .configuration_paramixer import ParamixerConfig

# E[gelu(z)^2] for a normal z of variance 1 / 3, which uniform weights make of normalised inputs.
HIDDEN_POWER = 0.1173


def link_offsets(config: ParamixerConfig, device: torch.device | None = None) -> torch.Tensor:
    """Offsets of the links of each factor, in positions ahead: (M, K) int64 (Paramixer, eqs. 5 and 6, PX-3).

    The first link of a factor is that to the position itself; longer ones come later, so that a longer maximum appends.
    """
    link = torch.arange(config.links - 1, device=device)
    factor = torch.arange(config.factors, device=device)[:, None]
    step, sign = link, -1 if config.is_causal else 1
    if config.two_sided:
        step, sign = link // 2, 1 - 2 * (link % 2)
    distance = (2**step).expand(config.factors, -1) if config.protocol == "chord" else (step + 1) * 2**factor
    return functional.pad(sign * distance, (1, 0))


class PublishedLinear(nn.Linear):
    """A linear layer that starts from the distribution of the published code, whatever initializer_range says."""

    def reset(self) -> None:
        """Draw weights and biases uniformly within 1 / sqrt(inputs)."""
        bound = self.in_features**-0.5
        init.uniform_(self.weight, -bound, bound)
        init.uniform_(self.bias, -bound, bound)


class LinkNetworks(nn.Module):
    """The weights of all links of a block: for each factor linear, GELU, linear on each position (Paramixer, eq. 4)."""

    def __init__(self, config: ParamixerConfig):
        super().__init__()
        self.config = config
        self.inner = PublishedLinear(config.hidden_size, config.factors * config.link_hidden_size)
        self.outer_weight = nn.Parameter(torch.empty(config.factors, config.link_hidden_size, config.links))
        self.outer_bias = nn.Parameter(torch.empty(config.factors, config.links))
        self.reset()

    def reset(self) -> None:
        """Draw the second layers (PX-9).

        In the paper's block, the published uniform distribution. Else links of variance 1 / (M K), for normalised
        inputs: the M factors then make a signal about sqrt(e) = 1.65 times as large, at any length.
        """
        config = self.config
        if config.block_style == "paper":
            bound = config.link_hidden_size**-0.5
            init.uniform_(self.outer_weight, -bound, bound)
            init.uniform_(self.outer_bias, -bound, bound)
        else:
            power = config.factors * config.links * config.link_hidden_size * HIDDEN_POWER
            init.normal_(self.outer_weight, std=power**-0.5)
            init.zeros_(self.outer_bias)

    def stacked_matrices(self) -> dict[str, tuple[int, int, int]]:
        """The two layers of each factor's network: (matrices, rows, columns) of the parameters that stack them."""
        factors, hidden, _ = self.outer_weight.shape
        return {"inner.weight": (factors, hidden, self.inner.in_features), "outer_weight": self.outer_weight.shape}

    @torch.no_grad()
    def resize_positions(self) -> None:
        """Bring the links to the configuration's number. New ones weigh zero, so that nothing changes before training.

        The first layers of new factors are drawn: were they zero too, the gradients of both layers would stay zero.
        """
        config = self.config
        old = self.inner
        self.inner = PublishedLinear(config.hidden_size, config.factors * config.link_hidden_size).to(old.weight)
        for name, parameter in old.named_parameters():
            larger = getattr(self.inner, name)
            larger[: len(parameter)] = parameter
            larger.requires_grad_(parameter.requires_grad)
        self.outer_weight = _extended(self.outer_weight, (config.factors, config.link_hidden_size, config.links))
        self.outer_bias = _extended(self.outer_bias, (config.factors, config.links))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, M, K)."""
        inner = linear(self.inner, hidden_states)
        if stands_for(inner.device) != "cpu":
            return _OuterLayers.apply(inner, self.outer_weight, self.outer_bias)
        hidden = functional.gelu(inner).unflatten(2, self.outer_weight.shape[:2])
        return torch.einsum("bnmh,mhk->bnmk", hidden, self.outer_weight) + self.outer_bias


class _OuterLayers(torch.autograd.Function):
    """GELU and the second layers on a GPU: inner (B, N, M h), weight (M, h, K), bias (M, K) -> (B, N, M, K).

    The GELU is made again backward: kept, it would be as large as what goes into it. The result lies as (M, K, B, N),
    as the links' kernel reads it, and products write where they belong: nothing is copied but the small weight: rows
    of K numbers, which is odd, are multiplied by old and slow kernels, which take 0.5 of a block's 6.1 ms (H200).
    """

    @staticmethod
    def forward(ctx, inner: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows = _rows_of_links(weight, inner)
        ctx.save_for_backward(inner, weight, rows)
        ctx.bias_dtype = bias.dtype
        hidden = _of_factors(functional.gelu(inner), weight)
        links = torch.baddbmm(bias.to(inner.dtype)[..., None], rows, hidden.mT)
        return links.unflatten(2, inner.shape[:2]).permute(2, 3, 0, 1)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inner, weight, rows = ctx.saved_tensors
        of_links = gradient.permute(2, 3, 0, 1).flatten(2)  # (M, K, B N)
        of_weight = (of_links @ _of_factors(functional.gelu(inner), weight)).mT
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            # Neither compilers nor who differentiates this take results whose rows are apart.
            of_hidden = torch.bmm(of_links.mT, _rows_of_links(weight, inner)).transpose(0, 1).reshape(inner.shape)
        else:
            of_hidden = torch.empty_like(inner, memory_format=torch.contiguous_format)
            torch.bmm(of_links.mT, rows, out=_of_factors(of_hidden, weight))
        of_inner = torch.ops.aten.gelu_backward(of_hidden, inner)
        return of_inner, of_weight.to(weight.dtype), of_links.sum(2, dtype=ctx.bias_dtype)


def _of_factors(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B, N, M h) -> (M, B N, h), a view."""
    return hidden.flatten(0, 1).unflatten(1, weight.shape[:2]).transpose(0, 1)


def _rows_of_links(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(M, h, K) -> (M, K, h), contiguous."""
    return weight.to(like.dtype).mT.contiguous()


def _extended(parameter: nn.Parameter, shape: tuple[int, ...]) -> nn.Parameter:
    """`parameter` in the corner of a larger one that is zero elsewhere."""
    larger = parameter.new_zeros(shape)
    larger[tuple(slice(size) for size in parameter.shape)] = parameter
    return nn.Parameter(larger, requires_grad=parameter.requires_grad)
