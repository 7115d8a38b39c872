"""Attention to the nearest tokens as an operator of torch."""

import torch

from ..common.rows import rows_like
from ..operators import differentiate, operator


def near_attention(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    estimate: torch.Tensor,
    bias: torch.Tensor,
    share_logit: torch.Tensor,
    before: int,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.near_attention`."""
    # Queries, keys and values of a layer lie between each other, row by row: channels side by side are enough.
    rows = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value, estimate))
    parameters = (x.contiguous() for x in (bias, share_logit))
    mixed, _ = _forward(kernels, *rows, *parameters, before, lengths, document_ids)
    return mixed.transpose(1, 2)


@operator(__package__, "near_attention")
def _forward(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    estimate: torch.Tensor,
    bias: torch.Tensor,
    share_logit: torch.Tensor,
    before: int,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, (B, N, H, c), and the logarithm of each row's sum of exponentials, (B, H, N).

    Channels lie side by side; bias and share_logit are contiguous.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    return rows_like(value).transpose(1, 2), query.new_empty(query.shape[:3], dtype=wide)


@operator(__package__, "near_attention_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    share_logit: torch.Tensor,
    before: int,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    result: torch.Tensor,
    sizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value, estimate, bias and share_logit; `result` and `sizes` are the two results."""
    return *(rows_like(x) for x in (query, key, value, value)), torch.empty_like(bias), torch.empty_like(share_logit)


def _keep(outputs, query, key, value, estimate, *others):
    # What comes behind it keeps the result anyway, and the estimate would be as many bytes more.
    return query, key, value, *others, *outputs


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments), _keep)
