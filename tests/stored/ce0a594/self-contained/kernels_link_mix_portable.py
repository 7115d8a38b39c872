# Part of longmix 0.1.0, longmix.kernels.link_mix.portable. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Paramixer's product of sparse factors as weighted sums of gathered rows, one fused call for each factor."""

import math

import torch
from torch.nn import functional

from .kernels_rows import keep_valid, valid_rows
from .kernels_link_mix_spans import spans


def link_mix(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    wrap: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.link_mix`."""
    start, length = spans(value.shape[1], lengths, document_ids, value.device)
    return _Product.apply(value, weights, offsets, start, length, valid_rows(lengths, value.shape[1]), wrap)


class _Product(torch.autograd.Function):
    """The product of all factors; the backward pass computes their inputs anew instead of storing them.

    Links do not leave their documents, so what rows of padding hold, NaN too, stays there until it is masked.
    """

    @staticmethod
    def forward(ctx, value, weights, offsets, start, length, valid, wrap):
        ctx.save_for_backward(value, weights, offsets, start, length, valid)
        ctx.wrap = wrap
        dtype, working = value.dtype, torch.promote_types(value.dtype, torch.float32)
        value, weights = value.to(working), weights.to(working)
        for factor in range(weights.shape[2]):
            value = _add_links(value, *_links(weights[:, :, factor], offsets[factor], start, length, wrap))
        return keep_valid(value, valid).to(dtype)

    @staticmethod
    def backward(ctx, gradient):
        # With create_graph=True this is differentiated, too.
        value, weights, offsets, start, length, valid = ctx.saved_tensors
        dtypes, working = (value.dtype, weights.dtype), torch.promote_types(value.dtype, torch.float32)
        value, weights, gradient = (tensor.to(working) for tensor in (value, weights, gradient))
        span = start, length, ctx.wrap
        count = weights.shape[2]
        # Of M inputs only every sqrt(M)-th is kept, and those between two of them while they are needed.
        stride = max(1, math.isqrt(count))
        kept = []
        for factor in range(count):
            if factor % stride == 0:
                kept.append(value)
            if factor < (count - 1) // stride * stride:
                value = _add_links(value, *_links(weights[:, :, factor], offsets[factor], *span))
        of_weights = torch.empty_like(weights)
        for first in reversed(range(0, count, stride)):
            inputs = [kept.pop()]
            for factor in range(first, min(first + stride, count) - 1):
                inputs.append(_add_links(inputs[-1], *_links(weights[:, :, factor], offsets[factor], *span)))
            for factor in reversed(range(first, first + len(inputs))):
                links, steps = weights[:, :, factor], offsets[factor]
                of_weights[:, :, factor] = _dot_products(gradient, inputs.pop(), *_targets(links, steps, *span))
                gradient = _add_links(gradient, *_links_into(links, steps, *span))
        gradients = zip((gradient, of_weights), dtypes, strict=True)
        return *(keep_valid(tensor, valid).to(dtype) for tensor, dtype in gradients), *[None] * 5


def _targets(links, offsets, start, length, wrap):
    """Where links (B, N, K) lead, (B, N, K) int64, and whether they exist, (B, N, K) bool or None for all of them.

    A link that does not exist leads to its own row.
    """
    position = torch.arange(links.shape[1], device=links.device)[:, None]
    start, length = start[:, :, None], length[:, :, None]
    moved = position - start + offsets
    if wrap:
        return (start + moved % length).expand_as(links), None
    exists = (moved >= 0) & (moved < length)
    return torch.where(exists, start + moved, position).expand_as(links), exists


def _links(links, offsets, start, length, wrap):
    """Targets (B, N, K) of the links of each row, and their weights."""
    targets, exists = _targets(links, offsets, start, length, wrap)
    return targets, links if exists is None else torch.where(exists, links, 0)


def _links_into(links, offsets, start, length, wrap):
    """Sources (B, N, K) of the links that lead to each row, and their weights: the transposed factor."""
    sources, exists = _targets(links, -offsets, start, length, wrap)
    weights = links.gather(1, sources)
    return sources, weights if exists is None else torch.where(exists, weights, 0)


def _flat(index):
    """Positions (B, N, K) within samples -> rows (B * N, K) of all samples together."""
    batch, positions, _ = index.shape
    return (index + positions * torch.arange(batch, device=index.device)[:, None, None]).flatten(0, 1)


def _add_links(value, index, weights):
    """value[b, i] + sum_k weights[b, i, k] value[b, index[b, i, k]], (B, N, D)."""
    linked = functional.embedding_bag(
        _flat(index), value.flatten(0, 1), mode="sum", per_sample_weights=weights.flatten(0, 1)
    )
    return linked.view_as(value).add_(value)


def _dot_products(gradient, value, index, exists):
    """<gradient[b, i], value[b, index[b, i, k]]> for each link, (B, N, K); zero for a link that does not exist."""
    batch, positions, width = value.shape
    links = index.shape[2]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # What is called below has no derivative.
        linked = value.flatten(0, 1)[_flat(index)].view(*index.shape, width)
        products = (gradient[:, :, None] * linked).sum(-1)
        return products if exists is None else torch.where(exists, products, 0)
    rows = torch.arange(batch * positions, device=index.device)
    # The derivative of embedding_bag by its weights; autograd offers it only together with embedding_bag itself.
    products = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        gradient.reshape(-1, width),
        value.reshape(-1, width),
        _flat(index).flatten(),
        links * rows,
        rows.repeat_interleave(links),
        0,
    ).view(index.shape)
    return products if exists is None else torch.where(exists, products, 0)
