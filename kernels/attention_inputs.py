"""What the linear attentions share: checks of their arguments, valid rows, documents and allowed pairs."""

import functools

import torch


def check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    names: tuple[str, str],
) -> None:
    """Raise ValueError unless query and key are (B, H, N, m), value (B, H, N, d), lengths (B,), document_ids (B, N).

    `names` are those of query and key in the message.
    """
    if query.dim() != 4 or key.shape != query.shape or value.dim() != 4 or value.shape[:3] != query.shape[:3]:
        raise ValueError(
            f"{names[0]}, {names[1]} and value have shapes {tuple(query.shape)}, {tuple(key.shape)} and "
            f"{tuple(value.shape)}; needed: (B, H, N, m), the same, and (B, H, N, d)"
        )
    if query.shape[3] == 0:
        raise ValueError(f"{names[0]} has no features; allowed: at least 1")
    batch, _, positions, _ = value.shape
    for name, tensor, shape in (("lengths", lengths, (batch,)), ("document_ids", document_ids, (batch, positions))):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; needed: {shape}")


def working_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """What is computed in: fp32, or float64 if a tensor is."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def keep_rows(tensor: torch.Tensor, valid: torch.Tensor | None, fill: float = 0.0) -> torch.Tensor:
    """`tensor` (B, H, N, k) with `fill` in the rows where `valid` (B, N) is false; a selection, so NaN vanishes too."""
    return tensor if valid is None else torch.where(valid[:, None, :, None], tensor, fill)


def valid_rows(lengths: torch.Tensor | None, positions: int) -> torch.Tensor | None:
    """(B,) -> (B, N) bool, true on the first lengths[b] rows; None: all."""
    return None if lengths is None else torch.arange(positions, device=lengths.device) < lengths[:, None]


def document_numbers(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids, equal along a document -> (B, N) its number in the row, 0, 1, ...; it changes where the id does."""
    first = torch.zeros_like(document_ids[:, :1], dtype=torch.int64)
    return torch.cat([first, (document_ids[:, 1:] != document_ids[:, :-1]).cumsum(1)], 1)


def allowed_pairs(
    positions: int, valid: torch.Tensor | None, causal: bool, document_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Which keys (last axis) a query (the axis before it) sees: bool, broadcast to (B, N, N)."""
    row = torch.arange(positions, device=device)
    allowed = (row[:, None] >= row)[None] if causal else torch.ones(1, positions, positions, device=device).bool()
    if document_ids is not None:
        number = document_numbers(document_ids)
        allowed = allowed & (number[:, :, None] == number[:, None, :])
    return allowed if valid is None else allowed & valid[:, None, :] & valid[:, :, None]
