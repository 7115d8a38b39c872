"""Paramixer's product of sparse factors: what it means."""

import torch

from ..common.arguments import as_documents, as_integers, as_lengths
from ..common.rows import keep_valid, of_nothing, valid_rows
from ..selection import select
from .portable import link_mix as portable
from .reference import link_mix as reference


def link_mix(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None = None,
    wrap: bool = True,
    document_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """(I + W_{M-1}) ... (I + W_0) value, a product of sparse factors (Paramixer, eqs. 3, 5 and 6, PX-4, PX-7).

    One factor: y[b, i] = x[b, i] + sum_k weights[b, i, m, k] * x[b, s + (i - s + offsets[m, k]) mod n], where the
    document of row i starts at s and has n rows. Links of a row to the same position are summed.

    Args:
        value: (B, N, D), any floating dtype.
        weights: (B, N, M, K), of factor m = 0, which is applied first, to M - 1.
        offsets: (M, K) integers, positive and negative; on a GPU of less than 2^31, with documents of less than 2^20.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.
        wrap: links that leave the row's document re-enter it at the other end; False: they are dropped.
        document_ids: (B, N) integers, any numbers, equal on the adjacent rows of one document. None: a sample is one
            document.

    Returns:
        (B, N, D) in the dtype of value; computed in fp32, or in float64 for float64 input.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    if value.dim() != 3:
        raise ValueError(f"value has shape {tuple(value.shape)}; needed: (B, N, D)")
    batch, positions, _ = value.shape
    if weights.dim() != 4 or weights.shape[:2] != value.shape[:2]:
        raise ValueError(f"weights has shape {tuple(weights.shape)}; needed: {(batch, positions)} and (M, K)")
    offsets = as_integers("offsets", offsets, value.device, tuple(weights.shape[2:]))
    lengths = as_lengths(lengths, batch, positions, value.device)
    document_ids = as_documents(document_ids, batch, positions, value.device)
    run = select("link_mix", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0 or weights.numel() == 0:
        return of_nothing(keep_valid(value, valid_rows(lengths, positions)), weights)
    return run(value, weights, offsets, lengths, wrap, document_ids)
