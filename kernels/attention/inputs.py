"""Arguments of the linear attentions: their checks, valid rows, documents and allowed pairs."""

import functools

import torch

from ..common.arguments import as_documents, as_lengths
from ..common.documents import document_numbers, same_document
from ..common.rows import keep_valid, valid_rows

__all__ = ["allowed_pairs", "check", "document_numbers", "keep_rows", "valid_rows", "working_dtype"]


def check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    names: tuple[str, str],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """lengths (B,) and document_ids (B, N) as `arguments` has them.

    Raises:
        ValueError: that cannot be, or query and key are not (B, H, N, m), value not (B, H, N, d); `names` are those of
            query and key in the message.
    """
    if query.dim() != 4 or key.shape != query.shape or value.dim() != 4 or value.shape[:3] != query.shape[:3]:
        raise ValueError(
            f"{names[0]}, {names[1]} and value have shapes {tuple(query.shape)}, {tuple(key.shape)} and "
            f"{tuple(value.shape)}; needed: (B, H, N, m), the same, and (B, H, N, d)"
        )
    if query.shape[3] == 0:
        raise ValueError(f"{names[0]} has no features; allowed: at least 1")
    batch, _, positions, _ = value.shape
    of_batch = (batch, positions, value.device)
    return as_lengths(lengths, *of_batch), as_documents(document_ids, *of_batch)


def working_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The dtype to compute in: fp32, or float64 if a tensor is."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def keep_rows(tensor: torch.Tensor, valid: torch.Tensor | None, fill: float = 0.0) -> torch.Tensor:
    """`tensor` (B, H, N, k) with `fill` in the rows where `valid` (B, N) is false, whatever they held."""
    return keep_valid(tensor, valid, fill, axis=2)


def allowed_pairs(
    positions: int, valid: torch.Tensor | None, causal: bool, document_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Mask of the keys (last axis) that a query (the axis before it) sees: bool, broadcast to (B, N, N)."""
    row = torch.arange(positions, device=device)
    allowed = (row[:, None] >= row)[None] if causal else torch.ones(1, positions, positions, device=device).bool()
    if document_ids is not None:
        allowed = allowed & same_document(document_ids)
    return allowed if valid is None else allowed & valid[:, None, :] & valid[:, :, None]
