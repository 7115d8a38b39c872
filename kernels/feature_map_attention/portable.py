"""Attention from features of queries and keys in plain PyTorch."""

import torch

from ..attention.feature_maps import features_of
from ..attention.inputs import working_dtype
from ..attention.linear_portable import linear_attention


def feature_map_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, feature_map: str, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.feature_map_attention`."""
    working = working_dtype(query, key, value)
    features = (features_of(x, feature_map, working) for x in (query, key))
    return linear_attention(*features, value, lengths, False, None)
