"""Attention from features of queries and keys as operators of torch."""

import torch

from ..attention.inputs import working_dtype
from ..attention.operator import attention
from ..common.rows import rows_like
from ..operators import differentiate, operator


@operator(__package__, "feature_map_attention")
def _forward(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    feature_map: str,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """The result (B, N, H, c) for queries and keys (B, H, N, d) and values (B, H, N, c).

    Of all three the last axis lies side by side. They may have any floating dtypes, but all float64 if one has.
    """
    return rows_like(value).transpose(1, 2)


@operator(__package__, "feature_map_attention_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    feature_map: str,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, a token's heads side by side."""
    return rows_like(query), rows_like(key), rows_like(value)


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments))


def feature_map_attention(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    feature_map: str,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.feature_map_attention`."""
    working = working_dtype(query, key, value)
    if kernels == "cpu_kernels":
        return attention(kernels, query, key, value, lengths, False, None, feature_map)
    dtype = value.dtype
    if working == torch.float64:
        query, key, value = (x.double() for x in (query, key, value))
    # Queries, keys and values of a layer lie between each other, row by row: channels side by side are enough.
    rows = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    return _forward(kernels, *rows, feature_map, lengths).transpose(1, 2).to(dtype)
