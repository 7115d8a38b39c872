"""Linear attention from the logarithms of positive features: what it means."""

import torch

from ..attention_inputs import check
from ..rows import of_nothing
from ..selection import select
from .portable import feature_attention as portable
from .reference import feature_attention as reference


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
        (B, H, N, d) in the dtype of value; computed in fp32, or in float64 if an argument is.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    names = ("query_log", "key_log")
    lengths, document_ids = check(query_log, key_log, value, lengths, document_ids, names)
    run = select("feature_attention", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0:
        return of_nothing(value, query_log, key_log)  # maxima over nothing do not exist
    return run(query_log, key_log, value, lengths, causal, document_ids)
