"""Logarithms of random features in plain PyTorch, and attention from them."""

import math

import torch

from ..attention.feature_portable import feature_attention
from ..common.rows import valid_rows
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
    logs = logs_of_both(query, key, projection, waves, columns, places, lengths)
    return feature_attention(*logs, value, lengths, causal, document_ids)


def logs_of_both(
    query: torch.Tensor,
    key: torch.Tensor,
    projection: torch.Tensor,
    waves: torch.Tensor | None,
    columns: torch.Tensor | None,
    places: Places | None,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of the features of queries, without what is constant in them, and of keys: (B, H, N, m) each."""
    if places is not None:
        waves = waves[0][:, places.positions].transpose(0, 1)
    valid = valid_rows(lengths, query.shape[2])
    logs = []
    of_both = (None, None) if columns is None else columns.unbind(0)
    for x, own, relative in ((query, of_both[0], True), (key, of_both[1], False)):
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if waves is None else waves.to(wide) @ own.to(wide)
        logs.append(log_features(x, projection, bias, relative, valid))
    return tuple(logs)


def log_features(
    x: torch.Tensor,
    projection: torch.Tensor,
    bias: torch.Tensor | None = None,
    relative: bool = False,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """log phi_m(x) = w_m . x / d^(1/4) - |x|^2 / (2 sqrt d) + bias, in fp32 or wider (Performers, lemma 1).

    The mean over normal w of phi(q) phi(k) is exp(q . k / sqrt d). What is constant in m and in the keys cancels in
    attention, so the factor m^(-1/2) is left out.

    Args:
        x: (B, H, N, d) queries or keys.
        projection: (m, d).
        bias: (B, H, N, m), that may be 1 in the first axis; None: nothing.
        relative: without |x|^2 / (2 sqrt d), which for queries cancels in attention too.
        valid: (B, N), false on rows that may hold anything, and whose gradients are zeros; None: all are valid.

    Returns:
        (B, H, N, m).
    """
    return _LogFeatures.apply(x, projection, bias, relative, valid)


class _LogFeatures(torch.autograd.Function):
    """`log_features` with half of the passes over memory that autograd would take."""

    @staticmethod
    def forward(
        ctx,
        x: torch.Tensor,
        projection: torch.Tensor,
        bias: torch.Tensor | None,
        relative: bool,
        valid: torch.Tensor | None,
    ) -> torch.Tensor:
        width, wide = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
        scaled = (projection.to(wide) * width**-0.25).transpose(-1, -2)
        inputs = x.to(wide, memory_format=torch.contiguous_format)  # of half precision, in one pass
        features = inputs @ scaled
        if bias is not None:
            features += bias
        if not relative:
            features -= torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).square() / (2 * math.sqrt(width))
        ctx.save_for_backward(x, projection, bias, valid)
        ctx.relative = relative
        return features

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, projection, bias, valid = ctx.saved_tensors
        of_projection, of_bias = None, None
        width = x.shape[-1]
        of_x = gradient @ (projection.to(gradient.dtype) * width**-0.25)
        if not ctx.relative:
            of_x.addcmul_(x, gradient.sum(-1, keepdim=True), value=-1 / math.sqrt(width))
        unknown = None if valid is None else ~valid[:, None, :, None]
        if unknown is not None:
            of_x.masked_fill_(unknown, 0)
        if ctx.needs_input_grad[1]:
            known = x if unknown is None else x.masked_fill(unknown, 0)
            of_projection = (gradient.mT @ known.to(gradient.dtype)).mul_(width**-0.25).sum_to_size(projection.shape)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = gradient.sum_to_size(bias.shape).to(bias.dtype)
        return of_x.to(x.dtype), of_projection, of_bias, None, None
