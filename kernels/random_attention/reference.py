"""Attention from random features over all pairs, in float64."""

import torch

from ..attention.reference import feature_attention
from ..common.rows import keep_valid, valid_rows
from .places import Places


def random_feature_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None,
    columns: torch.Tensor | None,
    places: Places | None,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.random_feature_attention`."""
    valid, logs = valid_rows(lengths, value.shape[2]), []
    for number, x in enumerate((query, key)):
        x = keep_valid(x.double(), valid, axis=2) * x.shape[3] ** -0.25
        log = x @ projection.double().T - x.square().sum(-1, keepdim=True) / 2
        if waves is not None:
            bias = waves.double() @ columns[number].double()
            log = log + (bias if places is None else torch.stack([bias[0][:, row] for row in places.positions]))
        logs.append(log)
    return feature_attention(*logs, value, lengths, causal, document_ids)
