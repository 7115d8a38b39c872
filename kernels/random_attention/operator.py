"""Attention from random features as operators of torch."""

import torch

from ..attention.inputs import working_dtype
from ..attention.operator import feature_attention
from ..common.rows import keep_valid, rows_like, valid_rows
from ..operators import differentiate, operator
from .places import Places
from .portable import logs_of_both
from .tables import gradients_of, tables_of

MOST_FEATURES = 64  # beside which values may lie anywhere, see `heads_lie_apart`


@operator(__package__, "random_attention")
def _forward(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None,
    columns: torch.Tensor | None,
    positions: torch.Tensor | None,
    order: torch.Tensor | None,
    starts: torch.Tensor | None,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """The result from features whose logarithms `log_features` of portable.py makes.

    Of queries and keys (B, H, N, d), values (B, H, N, c) and projection (m, d) the last axis lies side by side.
    Projection, waves (1 or B, 1 or H, P, w) and columns (2, H, w, m), whose product is the biases of queries and keys,
    have one dtype, fp32 or float64. A token's bias stands at its place: positions (B, N), or its row of its sample.
    `order` (B N,) has the tokens by their places, and those of place p begin at starts[p], (P + 1,); all in int64.

    The result is (B, N, H, c), or where heads lie apart (B, H, N, c): then the values are contiguous.
    """
    return torch.empty_like(value) if heads_lie_apart(projection, causal) else rows_like(value).transpose(1, 2)


@operator(__package__, "random_attention_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    tables: torch.Tensor | None,
    positions: torch.Tensor | None,
    order: torch.Tensor | None,
    starts: torch.Tensor | None,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value and tables (1 or B, 2, H, P, m), contiguous, (0,) without; and of the logarithms
    (B, H, N, m) of the features of queries and keys, which are made anew.
    """
    of_logs = [projection.new_empty(*query.shape[:3], len(projection)) for _ in range(2)]
    of_tables = projection.new_empty(0) if tables is None else torch.empty_like(tables)
    of_value = torch.empty_like(value) if heads_lie_apart(projection, causal) else rows_like(value)
    return rows_like(query), rows_like(key), of_value, of_tables, *of_logs


def heads_lie_apart(projection: torch.Tensor, causal: bool) -> bool:
    """Whether values and results have a head's rows behind each other, where a layer has them between those of others.

    With causality, in float64 and of many features, programs have no registers for more.
    """
    return causal or projection.dtype == torch.float64 or len(projection) > MOST_FEATURES


def _derivative(kernels, needed, gradient, query, key, value, projection, waves, columns, *others):
    # A backward pass may run under autocast, and a compiler traces it there: the tables would not be those of before.
    with torch.autocast(gradient.device.type, enabled=False):
        # Where samples are long, tables take as much memory as queries and keys: they are made again, and go, as do the
        # gradients of the logarithms, before more is made.
        tables = None if waves is None else tables_of(waves, columns)
        of_query, of_key, of_value, of_tables, *of_logs = _backward(
            kernels, gradient, query, key, value, projection, tables, *others
        )
        del tables
        of_projection = None
        if needed[3]:
            _, _, _, lengths, *_ = others
            valid = valid_rows(lengths, query.shape[2])
            products = (
                (of_log.mT @ keep_valid(x, valid, axis=2).to(of_log.dtype)).sum((0, 1))
                for of_log, x in zip(of_logs, (query, key), strict=True)
            )
            of_projection = sum(products) * query.shape[3] ** -0.25
        del of_logs
        of_biases = (None, None) if waves is None else gradients_of(of_tables, waves, columns, needed[4:6])
    return of_query, of_key, of_value, of_projection, *of_biases


differentiate(_forward, _derivative)


def random_feature_attention(
    kernels: str,
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
    if kernels == "cpu_kernels":
        logs = logs_of_both(query, key, projection, waves, columns, places, lengths)
        return feature_attention(kernels, *logs, value, lengths, causal, document_ids)
    working = working_dtype(query, key, value)
    biases = [None if x is None else x.to(working) for x in (waves, columns)]
    at = (None, None, None) if places is None else (places.positions, *places.order())
    # Queries, keys and values of a layer lie between each other, row by row: channels side by side are enough.
    rows = [x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value)]
    projected = projection.to(working)
    projected = projected if projected.stride(1) == 1 else projected.contiguous()
    apart = heads_lie_apart(projected, causal)
    if apart:
        rows[2] = value.to(working if working == torch.float64 else value.dtype).contiguous()
    result = _forward(kernels, *rows, projected, *biases, *at, lengths, document_ids, causal)
    return (result if apart else result.transpose(1, 2)).to(value.dtype)
