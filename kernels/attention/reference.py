"""Linear attention over all pairs, in float64: from log-features row by row, from features in one (N, N) matrix."""

import torch

from .inputs import allowed_pairs, keep_rows, valid_rows


def feature_attention(
    query_log: torch.Tensor,
    key_log: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.feature_attention`."""
    positions = value.shape[2]
    valid = valid_rows(lengths, positions)
    query, key, values = (keep_rows(tensor.double(), valid) for tensor in (query_log, key_log, value))
    allowed = allowed_pairs(positions, valid, causal, document_ids, value.device)
    rows = []
    for row in range(positions):
        scores = (query[:, :, row, None] + key).logsumexp(-1)
        seen = allowed[:, None, row].expand_as(scores)
        # A row that sees no key takes the softmax of all, and is set to zero.
        scores = scores.masked_fill(~seen & seen.any(-1, keepdim=True), -torch.inf)
        mixed = torch.einsum("bhj,bhjd->bhd", scores.softmax(-1), values)
        rows.append(torch.where(seen.any(-1, keepdim=True), mixed, 0.0))
    return torch.stack(rows, 2).to(value.dtype)


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
