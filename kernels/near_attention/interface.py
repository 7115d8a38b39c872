"""Exact attention to the nearest tokens beside an estimate of attention to all: what it means."""

import torch

from ..common.arguments import as_documents, as_lengths
from ..common.rows import of_nothing
from ..selection import select
from .portable import near_attention as portable
from .reference import near_attention as reference


def near_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    estimate: torch.Tensor,
    bias: torch.Tensor,
    share_logit: torch.Tensor,
    before: int,
    lengths: torch.Tensor | None = None,
    document_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[i] = (1 - s) estimate[i] + s softmax_j(q_i . k_j / sqrt d + bias[j - i + before]) value[j].

    s = sigmoid(share_logit) is that of the head. j runs over the K places i - before .. i - before + K - 1 that are
    valid tokens of i's document. No part of a paper (FL-10): it gives an estimate by few random features what it cannot
    hold. Cost is O(N K).

    Args:
        query, key: (B, H, N, d), any floating dtype.
        value, estimate: (B, H, N, c), any floating dtype.
        bias: (H, K), any floating dtype.
        share_logit: (H,), any floating dtype.
        before: how many places before i the first one is, 0 .. K - 1, so that i is among them.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.
        document_ids: (B, N) integers; a row sees the run of equal ids that it stands in. None: one document a row.

    Returns:
        (B, H, N, c) in the dtype of value; computed in fp32, or in float64 for float64 queries. Plain PyTorch
        multiplies half precision in half precision, and has the softmax in fp32.

    Raises:
        ValueError: shapes that do not fit together, `before` out of range, or integers that are none.
    """
    _check(query, key, value, estimate, bias, share_logit, before)
    batch, _, positions, _ = query.shape
    lengths = as_lengths(lengths, batch, positions, value.device)
    document_ids = as_documents(document_ids, batch, positions, value.device)
    run = select("near_attention", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0 or query.shape[3] == 0:
        return of_nothing(torch.zeros_like(value), query, key, value, estimate, bias, share_logit)
    return run(query, key, value, estimate, bias, share_logit, before, lengths, document_ids)


def _check(query, key, value, estimate, bias, share_logit, before) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in (("query", query), ("key", key), ("value", value))}
    if query.dim() != 4 or shapes["key"] != shapes["query"]:
        raise ValueError(f"query and key have shapes {shapes['query']} and {shapes['key']}; allowed: (B, H, N, d) both")
    if value.dim() != 4 or shapes["value"][:3] != shapes["query"][:3] or tuple(estimate.shape) != shapes["value"]:
        raise ValueError(
            f"value and estimate have shapes {shapes['value']} and {tuple(estimate.shape)} for a query of shape "
            f"{shapes['query']}; allowed: (B, H, N, c) both"
        )
    heads = shapes["query"][1]
    if bias.dim() != 2 or bias.shape[0] != heads or tuple(share_logit.shape) != (heads,):
        raise ValueError(
            f"bias and share_logit have shapes {tuple(bias.shape)} and {tuple(share_logit.shape)} for {heads} heads; "
            f"allowed: ({heads}, K) and ({heads},)"
        )
    if not 0 <= before < bias.shape[1]:
        raise ValueError(f"before is {before} for a bias of {bias.shape[1]} places; allowed: 0 .. {bias.shape[1] - 1}")
