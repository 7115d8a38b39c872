"""Attention from non-negative features, over all pairs in float64."""

import torch

from ..attention_inputs import allowed_pairs, keep_rows, valid_rows


def linear_attention(
    query_features: torch.Tensor,
    key_features: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.linear_attention`; memory (N, N)."""
    positions = value.shape[2]
    valid = valid_rows(lengths, positions)
    query, key, values = (keep_rows(tensor.double(), valid) for tensor in (query_features, key_features, value))
    allowed = allowed_pairs(positions, valid, causal, document_ids, value.device)[:, None]
    weights = torch.where(allowed, query @ key.transpose(-1, -2), 0.0)
    total = weights.sum(-1, keepdim=True)
    nothing = total == 0  # not `total > 0` elsewhere: NaN must come through
    mixed = torch.where(nothing, 0.0, weights @ values / torch.where(nothing, 1.0, total))
    return mixed.to(value.dtype)
