"""Random features as an operator of torch, and attention from them."""

import functools

import torch

from ..attention.operator import feature_attention
from ..common.rows import keep_valid, valid_rows
from ..operators import differentiate, operator
from .portable import logs_of_both


@operator(__package__, "log_features")
def _log_features(
    kernels: str,
    x: torch.Tensor,
    projection: torch.Tensor,
    bias: torch.Tensor | None,
    positions: torch.Tensor | None,
    order: torch.Tensor | None,
    starts: torch.Tensor | None,
    lengths: torch.Tensor | None,
    relative: bool,
) -> torch.Tensor:
    """`log_features` of portable.py for x (B, H, N, d), whose channels lie side by side: (B, H, N, m).

    projection (m, d) and bias (1 or B, H, P, m) are contiguous and in one dtype, fp32 or float64. A token's bias stands
    at its place: positions (B, N), or its row of its sample. `order` (B N,) has the tokens by their places, and those
    of place p begin at starts[p], (P + 1,); all in int64.
    """
    return projection.new_empty(*x.shape[:3], len(projection))


@operator(__package__, "log_features_backward")
def _log_features_backward(
    kernels: str,
    gradient: torch.Tensor,
    x: torch.Tensor,
    projection: torch.Tensor,
    bias: torch.Tensor | None,
    order: torch.Tensor | None,
    starts: torch.Tensor | None,
    lengths: torch.Tensor | None,
    relative: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and bias; without a bias nothing, (0,)."""
    return rows_like(x), x.new_empty(0) if bias is None else torch.empty_like(bias)


def rows_like(x: torch.Tensor) -> torch.Tensor:
    """Empty, of the shape (B, H, N, d) of x, the heads of a row side by side, as the layer around them has them."""
    batch, heads, positions, width = x.shape
    return x.new_empty(batch, positions, heads, width).transpose(1, 2)


def _of_log_features(kernels, needed, gradient, x, projection, bias, positions, order, starts, lengths, relative):
    of_x, of_bias = _log_features_backward(kernels, gradient, x, projection, bias, order, starts, lengths, relative)
    of_projection = None
    if needed[1]:
        known = keep_valid(x, valid_rows(lengths, x.shape[2]), axis=2).to(gradient.dtype)
        of_projection = (gradient.mT @ known).sum((0, 1)) * x.shape[3] ** -0.25
    return of_x, of_projection, None if bias is None else of_bias


differentiate(_log_features, _of_log_features)


def random_feature_attention(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None,
    query_columns: torch.Tensor | None,
    key_columns: torch.Tensor | None,
    positions: torch.Tensor | None,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.random_feature_attention`."""
    make = logs_of_both if kernels == "cpu_kernels" else functools.partial(_logs_on_gpu, kernels)
    logs = make(query, key, projection, waves, query_columns, key_columns, positions, lengths)
    return feature_attention(kernels, *logs, value, lengths, causal, document_ids)


def _logs_on_gpu(kernels, query, key, projection, waves, query_columns, key_columns, positions, lengths):
    order, starts = None, None
    if positions is not None:
        ordered, order = positions.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(waves.shape[2] + 1, device=ordered.device))
        positions = positions.contiguous()
    logs = []
    for x, columns, relative in ((query, query_columns, True), (key, key_columns, False)):
        x = x if x.stride(3) == 1 else x.contiguous()
        working = torch.promote_types(x.dtype, torch.float32)
        bias = None
        if waves is not None:
            bias = (waves.to(working) @ columns.to(working)).contiguous()
        projected = projection.to(working).contiguous()
        logs.append(_log_features(kernels, x, projected, bias, positions, order, starts, lengths, relative))
    return logs
