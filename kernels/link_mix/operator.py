"""Paramixer's product of sparse factors as an operator of torch."""

import torch

from ..operators import differentiate, operator


def link_mix(
    kernels: str,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    wrap: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.link_mix`."""
    return _forward(kernels, value.contiguous(), weights.contiguous(), offsets, lengths, document_ids, wrap)


@operator(__package__, "link_mix")
def _forward(
    kernels: str,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    wrap: bool,
) -> torch.Tensor:
    """All factors on value (B, N, D) and weights (B, N, M, K) of any floating dtypes; all are contiguous."""
    return torch.empty_like(value)


@operator(__package__, "link_mix_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    wrap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of value and weights; the factors' inputs are computed anew."""
    return torch.empty_like(value), torch.empty_like(weights)


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments))
