"""Documents that share a row: runs of equal ids. An id that returns after another one marks another document."""

import torch
from torch.nn import functional


def document_begins(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N) ids -> (B, N) bool, true on the first position of each document."""
    length = document_ids.shape[1]
    if length == 0:
        return torch.ones_like(document_ids, dtype=torch.bool)
    # Neither indexed nor written to, which fake tensors of a GPU that is not there refuse.
    changes = document_ids.narrow(1, 1, length - 1) != document_ids.narrow(1, 0, length - 1)
    return functional.pad(changes, (1, 0), value=True)


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
