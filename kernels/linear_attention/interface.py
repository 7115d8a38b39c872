"""Linear attention from non-negative features: what it means."""

import torch

from ..attention_inputs import check
from ..rows import of_nothing
from ..selection import select
from .portable import linear_attention as portable
from .reference import linear_attention as reference


def linear_attention(
    query_features: torch.Tensor,
    key_features: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None = None,
    causal: bool = False,
    document_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[i] = sum_j A[i, j] value[j] / sum_j A[i, j], with A[i, j] = sum_m query_features[i, m] key_features[j, m].

    j runs over the keys that i sees; where their weights sum to zero, out is zero. Cost and memory are linear in N.
    For features that may be zero; positive ones that are exponentials belong in `feature_attention`, where they cannot
    leave the range of numbers. (Katharopoulos et al., Transformers are RNNs, eq. 5.)

    Args:
        query_features, key_features: (B, H, N, m), at least 0, any floating dtype.
        value: (B, H, N, d), any floating dtype.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.
        causal: a row sees itself and what stands before it.
        document_ids: (B, N) integers; a row sees the run of equal ids that it stands in. None: one document a row.

    Returns:
        (B, H, N, d) in the dtype of value; computed in fp32, or in float64 if an argument is.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    names = ("query_features", "key_features")
    lengths, document_ids = check(query_features, key_features, value, lengths, document_ids, names)
    run = select("linear_attention", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0:
        return of_nothing(value, query_features, key_features)
    return run(query_features, key_features, value, lengths, causal, document_ids)
