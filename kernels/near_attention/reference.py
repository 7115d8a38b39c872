"""Attention to the nearest tokens as the matrix of all pairs, in float64."""

import torch

from ..common.documents import same_document
from ..common.rows import valid_rows


def near_attention(
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
    batch, _, positions, width = query.shape
    index = torch.arange(positions, device=query.device)
    place = index - index[:, None] + before
    seen = ((place >= 0) & (place < bias.shape[1])).expand(batch, -1, -1)
    if document_ids is not None:
        seen = seen & same_document(document_ids)
    valid = valid_rows(lengths, positions)
    valid = torch.ones_like(seen[:, 0]) if valid is None else valid
    keep = valid[:, None, :, None]
    dtype = value.dtype
    query, key, value, estimate = (torch.where(keep, x.double(), 0.0) for x in (query, key, value, estimate))
    scores = query @ key.mT / width**0.5 + bias.double()[:, place.clamp(0, bias.shape[1] - 1)]
    seen = (seen & valid[:, None, :])[:, None]
    weights = torch.where(seen, scores, -torch.inf).softmax(-1).where(seen.any(-1, keepdim=True), 0.0)
    share = share_logit.double().sigmoid()[:, None, None]
    return torch.where(keep, (1 - share) * estimate + share * (weights @ value), 0.0).to(dtype)
