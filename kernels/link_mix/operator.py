"""Paramixer's product of sparse factors as an operator of torch."""

import torch

from ..operators import differentiate, operator
from .spans import document_spans


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
    starts, counts = (None, None) if document_ids is None else document_spans(lengths, document_ids)
    weights = weights.contiguous() if kernels == "cpu_kernels" else by_links(weights)
    return _forward(kernels, value.contiguous(), weights, offsets, lengths, starts, counts, wrap)


def by_links(weights: torch.Tensor) -> torch.Tensor:
    """Weights (B, N, M, K) that lie as (M, K, B, N): those of one link next to each other, as programs read them."""
    return weights.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)


@operator(__package__, "link_mix")
def _forward(
    kernels: str,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    starts: torch.Tensor | None,
    counts: torch.Tensor | None,
    wrap: bool,
) -> torch.Tensor:
    """All factors on value (B, N, D) and weights (B, N, M, K) of any floating dtypes; all are contiguous, but for the
    weights on a GPU, which lie as `by_links` has them, and their gradient.

    `starts` and `counts` are (B, N) int32, of each row's document; None: each sample is one.
    """
    return torch.empty_like(value)


@operator(__package__, "link_mix_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    starts: torch.Tensor | None,
    counts: torch.Tensor | None,
    wrap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of value and weights; the factors' inputs are computed anew."""
    return torch.empty_like(value), torch.empty_like(weights)


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments))
