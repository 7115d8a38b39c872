"""Attention to the nearest tokens block by block: a block of rows and all that is within reach of it."""

import math

import torch

from ..common.documents import document_numbers
from ..common.rows import keep_valid, valid_rows
from ..common.windows import Windows


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
    positions, places = query.shape[2], bias.shape[1]
    valid = valid_rows(lengths, positions)
    query, key, value, estimate = (keep_valid(x, valid, axis=2) for x in (query, key, value, estimate))
    windows = Windows.over(positions, max(before, places - 1 - before))
    scores = windows.rows(query / math.sqrt(query.shape[-1])) @ windows.around(key).transpose(-1, -2)
    wide = torch.promote_types(scores.dtype, torch.float32)
    place = windows.distance(query.device) + before
    scores = scores.to(wide) + bias.to(wide)[:, place.clamp(0, places - 1)][:, None]
    scores = scores.masked_fill(~_seen(windows, place, places, valid, document_ids), -torch.inf)
    near = windows.join(scores.softmax(-1).to(value.dtype) @ windows.around(value))
    share = share_logit.to(wide).sigmoid()[:, None, None]
    mixed = (1 - share) * estimate.to(wide) + share * near.to(wide)
    return keep_valid(mixed.to(value.dtype), valid, axis=2)


def _seen(
    windows: Windows,
    place: torch.Tensor,
    places: int,
    valid: torch.Tensor | None,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """Keys (last axis) that each row of a block sees, among them itself: bool, (B or 1, 1, C, size, keys)."""
    if document_ids is None:
        group = torch.zeros(1, windows.positions, dtype=torch.int64, device=place.device)
    else:
        group = document_numbers(document_ids)
    group = keep_valid(group, valid, fill=-1) if valid is not None else group
    group = windows.around_flags(group, fill=-2)  # no document
    rows = group[..., windows.outside : windows.outside + windows.size, None]
    return ((place >= 0) & (place < places) & (rows == group[:, :, None]))[:, None]
