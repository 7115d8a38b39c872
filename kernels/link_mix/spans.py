"""The span of rows that each row's document takes."""

import torch

from ..common.documents import document_begins


def spans(
    positions: int, lengths: torch.Tensor | None, document_ids: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and length, at least 1, of each row's document: integers that broadcast to (B, N).

    Without documents that of padding is its sample; with them it is the padding, so that no document is longer for it.
    """
    if document_ids is not None:
        return document_spans(lengths, document_ids)
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return zero, zero + positions if lengths is None else lengths[:, None].clamp(min=1)


def document_spans(lengths: torch.Tensor | None, document_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`spans` where there are documents, (B, N) int32 each."""
    begins = document_begins(document_ids)
    if lengths is not None:
        begins = begins | (torch.arange(document_ids.shape[1], device=begins.device) == lengths[:, None])
    number = begins.cumsum(1)
    start = torch.searchsorted(number, number, out_int32=True)
    return start, torch.searchsorted(number, number, right=True, out_int32=True) - start
