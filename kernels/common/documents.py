"""Documents that share a row: runs of equal ids. An id that returns after another one marks another document."""

import torch


def document_begins(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids -> (B, N) bool, true on the first position of each document."""
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    # Narrowed, not indexed, which fake tensors of a GPU that is not there refuse.
    length = document_ids.shape[1]
    later = max(length - 1, 0)
    begins.narrow(1, length - later, later).copy_(
        document_ids.narrow(1, length - later, later) != document_ids.narrow(1, 0, later)
    )
    return begins


def document_starts(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids -> (B, N) int64, the position where each one's document begins."""
    positions = torch.arange(document_ids.shape[1], device=document_ids.device)
    return torch.where(document_begins(document_ids), positions, 0).cummax(1).values


def document_numbers(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids -> (B, N) int64, the number of each one's document in its row: 0, 1, ..."""
    return document_begins(document_ids).cumsum(1) - 1


def same_document(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids -> (B, N, N) bool, true where both positions are of one document."""
    number = document_numbers(document_ids)
    return number[:, :, None] == number[:, None, :]
