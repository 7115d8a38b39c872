"""Attention from non-negative features in time linear in N: one state, or one for each block of rows."""

import torch
from torch.nn import functional

from ..common.scan import Items, entering
from .inputs import document_numbers, keep_rows, valid_rows, working_dtype

BLOCK = 64


def linear_attention(
    query_features: torch.Tensor,
    key_features: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.linear_attention`."""
    positions, width = value.shape[2:]
    valid = valid_rows(lengths, positions)
    working = working_dtype(query_features, key_features, value)
    with torch.autocast(value.device.type, enabled=False):
        query, key, values = (keep_rows(tensor.to(working), valid) for tensor in (query_features, key_features, value))
        values = functional.pad(values, (0, 1), value=1.0)  # the last column sums the weights
        if causal or document_ids is not None:
            number = None if document_ids is None else document_numbers(document_ids)
            sums = _in_blocks(query, key, values, number, causal)[:, :, :positions]
        else:
            sums = query @ (key.transpose(-1, -2) @ values)
        mixed, total = sums.split([width, 1], -1)
        nothing = total == 0  # not `total > 0` elsewhere: NaN must come through
        result = torch.where(nothing, 0.0, mixed / torch.where(nothing, 1.0, total))
    return keep_rows(result, valid).to(value.dtype)


def _in_blocks(
    query: torch.Tensor, key: torch.Tensor, values: torch.Tensor, number: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """Weighted sums (B, H, N', d + 1), N' >= N: all pairs inside a block of rows, a state for what lies around it."""
    missing = -query.shape[2] % BLOCK
    query, key, values = (
        functional.pad(tensor, (0, 0, 0, missing)).unflatten(2, (-1, BLOCK)) for tensor in (query, key, values)
    )
    if number is None:
        number = query.new_zeros(1, 1, query.shape[2], BLOCK, 1, dtype=torch.int64)
    else:
        number = functional.pad(number, (0, missing), value=-1)[:, None, :, None].unflatten(2, (-1, BLOCK))
    scores = query @ key.transpose(-1, -2)
    scores = torch.where(number == number.transpose(-1, -2), scores, 0.0)
    sums = (scores.tril() if causal else scores) @ values + _around(query, key, values, number)
    if not causal:
        sums = sums + _around(query, key, values, number, backwards=True)
    return sums.flatten(2, 3)


def _around(
    query: torch.Tensor, key: torch.Tensor, values: torch.Tensor, number: torch.Tensor, backwards: bool = False
) -> torch.Tensor:
    """(B, H, C, c, m), twice, (B, H, C, c, d + 1) and (B, 1, C, c, 1) -> sums over earlier, or later, blocks.

    Of those a block sees one document, that of the last row before it, so a state holds one document.
    """
    shared = number[..., :1, :] if backwards else number[..., -1:, :]
    state = torch.where(number == shared, key, 0.0).transpose(-1, -2) @ values
    state, shared = entering(_join, (state, shared), (0.0, -1), backwards)
    return torch.where(number == shared, query, 0.0) @ state


def _join(left: Items, right: Items) -> Items:
    """States (B, H, C, m, d + 1) and the documents (B, 1, C, 1, 1) that they belong to."""
    return torch.where(left[1] == right[1], left[0], 0.0) + right[0], right[1]
