"""Paramixer's product of sparse factors as weighted sums of gathered rows, one fused call for each factor."""

import itertools

import torch
from torch.nn import functional

from ..common.devices import for_gpu
from ..common.rows import keep_valid, valid_rows
from .spans import spans


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
        kept = _kept_dtype(value)
        rows = value.to(kept).flatten(0, 1)
        for factor in _factors(weights.to(kept), offsets, start, length, wrap):
            rows = _mixed(rows, *factor)
        return keep_valid(rows.view_as(value), valid).to(value.dtype)

    @staticmethod
    def backward(ctx, gradient):
        # With create_graph=True this is differentiated, too.
        value, weights, offsets, start, length, valid = ctx.saved_tensors
        dtypes, kept = (value.dtype, weights.dtype), _kept_dtype(value)
        rows, gradient = (tensor.to(kept).flatten(0, 1) for tensor in (value, gradient))
        links = weights.to(kept), offsets, start, length, ctx.wrap
        inputs = [rows]
        for factor in itertools.islice(_factors(*links), len(offsets) - 1):
            inputs.append(_mixed(inputs[-1], *factor))
        of_weights = []
        for (targets, _, exists), into in zip(_factors(*links, reverse=True), _factors_into(*links), strict=True):
            products = _dot_products(gradient, inputs.pop(), _flat(targets)).view_as(targets)
            of_weights.append(products if exists is None else torch.where(exists, products, 0))
            gradient = _mixed(gradient, *into)
        of_weights = torch.stack(of_weights[::-1], 2)
        gradients = zip((gradient.view_as(value), of_weights), dtypes, strict=True)
        return *(keep_valid(tensor, valid).to(dtype) for tensor, dtype in gradients), *[None] * 5


def _kept_dtype(value):
    """What rows are kept in between factors; sums are fp32 in any case."""
    return value.dtype if for_gpu(value) else torch.promote_types(value.dtype, torch.float32)


def _factors(weights, offsets, start, length, wrap, reverse=False):
    """Of each factor: targets (B, N, K) of its links within samples, their weights, and whether they exist, or None.

    A link that does not exist leads to its own row. For GPUs all factors' are found at once.
    """
    position = torch.arange(weights.shape[1], device=weights.device)[:, None, None]
    start, length = (part[..., None, None] for part in (start, length))
    count = len(offsets) if for_gpu(weights) else 1
    firsts = range(0, len(offsets), count)
    for first in reversed(firsts) if reverse else firsts:
        moved = position - start + offsets[first : first + count]
        exists = None if wrap else (moved >= 0) & (moved < length)
        targets = start + moved % length if wrap else torch.where(exists, start + moved, position)
        some = range(first, min(first + count, len(offsets)))
        for factor in reversed(some) if reverse else some:
            links = weights[:, :, factor]
            there = None if exists is None else exists[:, :, factor - first]
            yield targets[:, :, factor - first].expand_as(links), links, there


def _factors_into(weights, offsets, start, length, wrap):
    """`_factors` transposed, the last one first: sources of the links that lead to each row, and so on."""
    for sources, links, exists in _factors(weights, -offsets, start, length, wrap, reverse=True):
        yield sources, links.gather(1, sources), exists


def _flat(rows):
    """Rows of samples (B, N, K) -> rows of all samples together, (B * N, K)."""
    batch, positions, _ = rows.shape
    return (rows + positions * torch.arange(batch, device=rows.device)[:, None, None]).flatten(0, 1)


def _mixed(rows, targets, weights, exists):
    """(I + W) rows, (B * N, D), for one factor W."""
    index, weights = _flat(targets), weights if exists is None else torch.where(exists, weights, 0)
    weights = weights.flatten(0, 1)
    if not for_gpu(rows):
        return _sums(rows, index, weights).add_(rows)
    # The identity as one more link, which saves a pass over all rows.
    own = torch.arange(len(rows), device=rows.device)[:, None]
    return _sums(rows, torch.cat([index, own], 1), functional.pad(weights, (0, 1), value=1.0))


def _sums(rows, index, weights):
    """sum_k weights[i, k] rows[index[i, k]], (B * N, D)."""
    return functional.embedding_bag(index, rows, mode="sum", per_sample_weights=weights)


def _dot_products(gradient, rows, index):
    """<gradient[i], rows[index[i, k]]> for each link, (B * N, K)."""
    count, links = index.shape
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # What is called below has no derivative.
        return (gradient[:, None] * rows[index]).sum(-1)
    if for_gpu(rows) and rows.dtype == torch.bfloat16:
        gradient, rows = gradient.float(), rows.float()  # torch has no such operator in bf16 on a GPU
    bags = torch.arange(count, device=index.device)
    # The derivative of embedding_bag by its weights; autograd offers it only together with embedding_bag itself.
    return torch.ops.aten._embedding_bag_per_sample_weights_backward(
        *(gradient, rows, index.flatten(), links * bags, bags.repeat_interleave(links), 0)
    ).view_as(index)
