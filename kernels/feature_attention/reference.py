"""Attention from log-features, row by row over all pairs in float64."""

import torch

from ..attention_inputs import allowed_pairs, keep_rows, valid_rows


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
