# Part of longmix 0.1.0, longmix.kernels.link_mix.spans. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Where the document of each row lies."""

import torch

from .kernels_documents import document_begins


def spans(
    positions: int, lengths: torch.Tensor | None, document_ids: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and length, at least 1, of each row's document: int64 that broadcast to (B, N).

    Without documents that of padding is its sample; with them it is the padding, so that no document is longer for it.
    """
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    if document_ids is None:
        return zero, zero + positions if lengths is None else lengths[:, None].clamp(min=1)
    position = torch.arange(positions, device=device)
    begins = document_begins(document_ids)
    if lengths is not None:
        begins = begins | (position == lengths[:, None])
    number = begins.cumsum(1)
    start = torch.searchsorted(number, number)
    return start, torch.searchsorted(number, number, right=True) - start
