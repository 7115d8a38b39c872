"""Attention from features of queries and keys over all pairs, in float64."""

import torch
from torch.nn import functional

from ..attention.reference import linear_attention
from ..common.rows import keep_valid, valid_rows


def feature_map_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, feature_map: str, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.feature_map_attention`; memory (N, N)."""
    valid = valid_rows(lengths, value.shape[2])
    rows = [keep_valid(x.double(), valid, axis=2) for x in (query, key)]
    if feature_map == "elu":
        # Where it is small, elu(x) + 1 would be the difference of two numbers near 1.
        features = [torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in rows]
    else:
        features = [functional.relu(x / x.shape[3] ** 0.25) + 0.001 for x in rows]
    return linear_attention(*features, value, lengths, False, None)
