"""Linear attention, from the logarithms of positive features or from features that may be zero: what it means."""

import torch

from ..common.rows import of_nothing
from ..selection import select
from .feature_portable import feature_attention as portable_feature_attention
from .inputs import check
from .linear_portable import linear_attention as portable_linear_attention
from .reference import feature_attention as reference_feature_attention
from .reference import linear_attention as reference_linear_attention


def feature_attention(
    query_log: torch.Tensor,
    key_log: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None = None,
    causal: bool = False,
    document_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[i] = sum_j A[i, j] value[j] / sum_j A[i, j], with A[i, j] = sum_m exp(query_log[i, m] + key_log[j, m]).

    j runs over the keys that i sees; where there is none, out is zero. Finite features of any size are exact to
    rounding, also where their exponentials would leave the range of numbers. Cost and memory are linear in N.
    (Choromanski et al., Rethinking Attention with Performers, eq. 4; FLT, Algorithm 1.)

    Args:
        query_log, key_log: (B, H, N, m), any floating dtype.
        value: (B, H, N, d), any floating dtype.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and come out zero. None: all N.
        causal: a row sees itself and what stands before it.
        document_ids: (B, N) integers; a row sees the run of equal ids that it stands in. None: one document a row.

    Returns:
        (B, H, N, d) in the dtype of value; computed in fp32, or in float64 if an argument is; on GPUs
            factors of half-precision values may have 11 binary digits (docs/kernels.md).

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    names = ("query_log", "key_log")
    lengths, document_ids = check(query_log, key_log, value, lengths, document_ids, names)
    run = select(
        "feature_attention",
        value.device,
        {"portable": portable_feature_attention, "reference": reference_feature_attention},
    )
    if value.numel() == 0:
        return of_nothing(value, query_log, key_log)  # maxima over nothing do not exist
    return run(query_log, key_log, value, lengths, causal, document_ids)


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
        (B, H, N, d) in the dtype of value; computed in fp32, or in float64 if an argument is; on GPUs
            factors of half-precision values may have 11 binary digits (docs/kernels.md).

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    names = ("query_features", "key_features")
    lengths, document_ids = check(query_features, key_features, value, lengths, document_ids, names)
    run = select(
        "linear_attention",
        value.device,
        {"portable": portable_linear_attention, "reference": reference_linear_attention},
    )
    if value.numel() == 0:
        return of_nothing(value, query_features, key_features)
    return run(query_features, key_features, value, lengths, causal, document_ids)
