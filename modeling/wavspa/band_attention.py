"""Attention in WavSpA's bands: those of one length are attended in together, and on GPUs all of them."""

import functools
from collections.abc import Sequence

import torch
from torch import nn

from longmix.kernels.bands.layout import join_bands
from longmix.kernels.linear.products import multiplies

from ..attention import Attention, LinearAttention, SoftmaxAttention
from ..attention.variable_length import kernel_for
from ..context import BatchContext, segments_of_rows
from ..masking import keep_valid
from ..plain_linear import are_bare, are_unwatched, linear
from ..precision import narrowed

# Attentions that have no parameters between their projections.
ALIKE = (SoftmaxAttention, LinearAttention)
# (k B, n_j) of each stack: k bands of one length one behind the other.
Shapes = Sequence[tuple[int, int]]
Masks = Sequence[torch.Tensor | None]


def attend_in_bands(
    attentions: Sequence[Attention],
    stacked: Sequence[int],
    shapes: Shapes,
    bands: torch.Tensor,
    masks: Masks,
    context: BatchContext,
) -> torch.Tensor:
    """What the attention of each band makes of it.

    To an attention that they share, bands of one length are so many samples more; where attentions differ by their
    projections alone, so are those that have one each. Where softmax attention knows segments, all bands are these.

    Args:
        attentions: one for each band, of one kind, perhaps one and the same.
        stacked: bands of each stack.
        shapes: of each stack, (k B, n_j).
        bands: (R, width), all of them one behind the other.
        masks: (k B, n_j) bool each, the valid rows of a stack; None: all of them.
        context: of the batch; it keeps what all layers need of the bands' segments.

    Returns:
        (R, width), zero where nothing is valid.
    """
    if len(stacked) > 1 and _are_segments(attentions, bands):
        return _in_segments(attentions, stacked, shapes, bands, masks, context)
    mixed, first = [], 0
    parts = bands.split([samples * rows for samples, rows in shapes]) if len(shapes) > 1 else [bands]
    for count, shape, part, mask in zip(stacked, shapes, parts, masks, strict=True):
        chosen, rows = attentions[first : first + count], part.unflatten(0, shape)
        first += count
        if all(attention is chosen[0] for attention in chosen):
            mixed.append(chosen[0](rows, BatchContext(mask)))
        elif type(chosen[0]) in ALIKE and _are_alike(chosen):
            mixed.append(_together(chosen, rows, mask))
        else:
            of_bands = [None] * count if mask is None else _bands(mask, count)
            each = zip(chosen, _bands(rows, count), of_bands, strict=True)
            mixed.append(torch.cat([attention(band, BatchContext(of_band)) for attention, band, of_band in each]))
    return join_bands(mixed)


def _are_alike(attentions: Sequence[Attention]) -> bool:
    """Whether all are of one kind, and a call of each does nothing else."""
    return all(type(attention) is type(attentions[0]) for attention in attentions) and are_unwatched(attentions)


def _are_segments(attentions: Sequence[Attention], bands: torch.Tensor) -> bool:
    """Whether softmax attention takes all bands at once, by a kernel for segments. Watched ones are called, and what
    stands in a projection's place may give queries of another dtype, for which there is none.
    """
    if type(attentions[0]) is not SoftmaxAttention or not _are_alike(attentions):
        return False
    if not are_bare([layer for attention in attentions for layer in (attention.projection, attention.output)]):
        return False
    first = attentions[0]
    (like,) = narrowed(bands.new_empty(1, 1, 1, first.config.hidden_size // first.heads))
    return kernel_for(like, first.dropout_probability) is not None


def _in_segments(
    attentions: Sequence[Attention],
    stacked: Sequence[int],
    shapes: Shapes,
    bands: torch.Tensor,
    masks: Masks,
    context: BatchContext,
) -> torch.Tensor:
    """`attend_in_bands` as one attention within segments: each sample's valid rows of a band, and its padding there."""
    first = attentions[0]
    lengths = [None if mask is None else mask.sum(1) for mask in masks]
    make = functools.partial(segments_of_rows, shapes, lengths, bands.device)
    segments = context.once(("segments of bands",), make)
    counts = [
        samples // count * rows for count, (samples, rows) in zip(stacked, shapes, strict=True) for _ in range(count)
    ]
    mask = None if masks[0] is None else torch.cat([mask.flatten() for mask in masks])[None]
    rows = keep_valid(bands.unsqueeze(0), mask)
    heads = first.heads_of(_linear_of_each(rows, counts, [attention.projection for attention in attentions]))
    mixed = first.attend(*heads, BatchContext(documents=segments)).transpose(1, 2).flatten(2)
    return keep_valid(_linear_of_each(mixed, counts, [attention.output for attention in attentions]), mask).squeeze(0)


def _together(attentions: Sequence[Attention], rows: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """A stack (k B, n, width) -> (k B, n, width)."""
    first = attentions[0]
    rows = keep_valid(rows, mask)
    query, key, value = first.heads_of(linear_of_bands(rows, [attention.projection for attention in attentions]))
    mixed = first.attend(query, key, value, BatchContext(mask)).transpose(1, 2).flatten(2)
    return keep_valid(linear_of_bands(mixed, [attention.output for attention in attentions]), mask)


def _bands(stack: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """(k B, ..) -> k of (B, ..)."""
    # Not by `chunk`: the size of its parts depends on the number of samples, and an export would hold for that alone.
    return stack.unflatten(0, (count, -1)).unbind()


# Linear layers of several bands. A compiled graph writes the products side by side without being told.


def linear_of_bands(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> torch.Tensor:
    """Each layer on the samples of its band, which follow each other: (J B, n, in) -> (J B, n, out)."""
    bands = _bands(rows, len(layers))
    if torch.compiler.is_compiling() or not are_bare(layers) or multiplies(bands[0], layers[0].weight, layers[0].bias):
        return torch.cat([linear(layer, band) for layer, band in zip(layers, bands, strict=True)])
    return _written_side_by_side(rows, [rows.shape[0] // len(layers) * rows.shape[1]] * len(layers), layers)


def _linear_of_each(rows: torch.Tensor, counts: Sequence[int], layers: Sequence[nn.Linear]) -> torch.Tensor:
    """Each layer, of those that are bare, on so many rows, which follow each other: (1, R, in) -> (1, R, out)."""
    if all(layer is layers[0] for layer in layers):
        return linear(layers[0], rows)
    if torch.compiler.is_compiling():
        return torch.cat([linear(layer, band) for layer, band in zip(layers, rows.split(counts, 1), strict=True)], 1)
    return _written_side_by_side(rows, counts, layers)


def _written_side_by_side(rows: torch.Tensor, counts: Sequence[int], layers: Sequence[nn.Linear]) -> torch.Tensor:
    parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
    return _LinearOfBands.apply(counts, *narrowed(rows, *parameters))


class _LinearOfBands(torch.autograd.Function):
    """The products write where the next operation reads: no copy puts bands side by side."""

    @staticmethod
    def forward(ctx, counts: Sequence[int], rows: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        bands = rows.reshape(-1, rows.shape[2])
        result = rows.new_empty(len(bands), len(biases[0]))
        each = zip(bands.split(counts), weights, biases, result.split(counts), strict=True)
        for band, weight, bias, into in each:
            torch.addmm(bias, band, weight.T, out=into)
        ctx.save_for_backward(rows, *weights)
        ctx.counts = counts
        return result.view(*rows.shape[:2], -1)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        bands, gradients = rows.reshape(-1, rows.shape[2]), gradient.reshape(-1, gradient.shape[2])
        of_results = gradients.split(ctx.counts)
        if torch.is_grad_enabled():  # no gradient follows what is written into a tensor
            of_rows = torch.cat([of_result @ weight for of_result, weight in zip(of_results, weights, strict=True)])
        else:
            of_rows = torch.empty_like(bands)
            for of_result, weight, into in zip(of_results, weights, of_rows.split(ctx.counts), strict=True):
                torch.mm(of_result, weight, out=into)
        of_weights = [of_result.T @ band for of_result, band in zip(of_results, bands.split(ctx.counts), strict=True)]
        if len(set(ctx.counts)) == 1:
            of_biases = gradients.unflatten(0, (len(weights), -1)).sum(1)
        else:
            of_biases = [of_result.sum(0) for of_result in of_results]
        return None, of_rows.view(*gradient.shape[:2], -1), *of_weights, *of_biases
