"""Attention from random features of queries and keys: what it means."""

import torch

from ..attention.inputs import check
from ..common.arguments import as_integers
from ..common.rows import of_nothing
from ..selection import select
from .places import Places
from .portable import random_feature_attention as portable
from .reference import random_feature_attention as reference


def random_feature_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None = None,
    columns: torch.Tensor | None = None,
    positions: torch.Tensor | Places | None = None,
    lengths: torch.Tensor | None = None,
    causal: bool = False,
    document_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """`feature_attention` from the features exp(w_m . x / d^(1/4) - |x|^2 / (2 sqrt d) + bias_m) of queries and keys x.

    Their products estimate exp(q . k / sqrt d), for normal w (Performers, lemma 1); the biases are products of waves,
    which all heads may share, with columns for queries and for keys (FLT, algorithm 1).

    Args:
        query, key: (B, H, N, d), any floating dtype.
        value: (B, H, N, c), any floating dtype.
        projection: (m, d), the w.
        waves: (1 or B, 1 or H, P, w), of the rows of each sample, P = N, or, with positions, of the places 0 .. P - 1;
            None: no biases.
        columns: (2, H, w, m), for queries and for keys, beside waves.
        positions: (B, N) integers, the place of each token, clamped to 0 .. P - 1, or Places, which calls share; None:
            its row.
        lengths, causal, document_ids: see `feature_attention`.

    Returns:
        (B, H, N, c) in the dtype of value; computed in fp32, or in float64 for float64 queries; on GPUs
            factors of half-precision values may have 11 binary digits (docs/kernels.md).

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    _check_biases(query, projection, waves, columns, positions)
    lengths, document_ids = check(query, key, value, lengths, document_ids, ("query", "key"))
    places = positions
    if positions is not None and not isinstance(positions, Places):
        batch, count, most = value.shape[0], value.shape[2], waves.shape[2]
        clamped = as_integers("positions", positions, value.device, (batch, count)).clamp(0, most - 1)
        places = Places(clamped, most)
    run = select(
        "random_feature_attention",
        value.device,
        {"portable": portable, "reference": reference},
    )
    if value.numel() == 0:
        return of_nothing(value, query, key, projection, waves, columns)
    # The features are exponentials: half precision in what is summed up there would be an error of percents.
    with torch.autocast(value.device.type, enabled=False):
        return run(query, key, value, projection, waves, columns, places, lengths, causal, document_ids)


def _check_biases(
    query: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None,
    columns: torch.Tensor | None,
    positions: torch.Tensor | Places | None,
) -> None:
    """Raise ValueError unless projection, waves and columns of `random_feature_attention` fit the queries."""
    if query.dim() != 4 or projection.dim() != 2 or projection.shape[1] != query.shape[3] or len(projection) == 0:
        raise ValueError(
            f"query and projection have shapes {tuple(query.shape)} and {tuple(projection.shape)}; needed: "
            "(B, H, N, d) and (m, d) with m at least 1"
        )
    if (waves is None) != (columns is None) or (positions is not None and waves is None):
        raise ValueError("given is only a part of waves and columns; allowed: both, or none and no positions")
    if waves is None:
        return
    batch, heads, count, _ = query.shape
    if positions is not None and waves.shape[2:3] == (0,) and count > 0:
        raise ValueError("waves has no places; allowed: at least 1 beside positions")
    samples = (1,) if positions is not None else (1, batch)
    fits = waves.dim() == 4 and waves.shape[0] in samples and waves.shape[1] in (1, heads)
    if not fits or (positions is None and waves.shape[2] != count):
        places = count if positions is None else "P"
        raise ValueError(
            f"waves has shape {tuple(waves.shape)}; allowed: ({' or '.join(map(str, samples))}, 1 or {heads}, "
            f"{places}, w)"
        )
    if isinstance(positions, Places):
        shape, places = tuple(positions.positions.shape), positions.count
        if shape != (batch, count) or places != waves.shape[2]:
            raise ValueError(
                f"positions has shape {shape} and {places} places for {waves.shape[2]} of waves; needed: "
                f"{(batch, count)}, and as many places"
            )
    needed = (2, heads, waves.shape[3], len(projection))
    if tuple(columns.shape) != needed:
        raise ValueError(f"columns has shape {tuple(columns.shape)}; needed: {needed}, (2, H, w, m)")
