"""Linear attention from features that are made of queries and keys one by one: what it means."""

import torch

from ..attention.feature_maps import FEATURE_MAPS
from ..attention.inputs import check
from ..common.rows import of_nothing
from ..selection import select
from .portable import feature_map_attention as portable
from .reference import feature_map_attention as reference


def feature_map_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    feature_map: str,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear_attention`, without causality, from features phi of queries and of keys, which are positive.

    "elu": phi(x) = elu(x) + 1 (Katharopoulos et al., Transformers are RNNs, eq. 7). "relu": phi(x) = relu(x / d^(1/4))
    + 0.001 (Choromanski et al., Rethinking Attention with Performers, section 2.3).

    Args:
        query, key: (B, H, N, d), any floating dtype.
        value: (B, H, N, c), any floating dtype.
        feature_map: one of FEATURE_MAPS.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.

    Returns:
        (B, H, N, c) in the dtype of value; computed in fp32, or in float64 if an argument is; on GPUs
            factors of half-precision values may have 11 binary digits (docs/kernels.md).

    Raises:
        ValueError: shapes that do not fit together, integers that are none, or an unknown feature map.
    """
    lengths, _ = check(query, key, value, lengths, None, ("query", "key"))
    if feature_map not in FEATURE_MAPS:
        raise ValueError(f"feature_map is {feature_map!r}; allowed: {', '.join(FEATURE_MAPS)}")
    run = select("feature_map_attention", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0:
        return of_nothing(value, query, key)
    # Half precision in what is summed up over all keys would be an error of percents.
    with torch.autocast(value.device.type, enabled=False):
        return run(query, key, value, feature_map, lengths)
