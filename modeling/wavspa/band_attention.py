"""Attention in WavSpA's bands: those of one length are attended in together."""

from collections.abc import Sequence

import torch
from torch import nn

from longmix.kernels.linear.products import multiplies

from ..attention import Attention, LinearAttention, SoftmaxAttention
from ..context import BatchContext
from ..masking import keep_valid
from ..plain_linear import are_bare, linear
from ..precision import narrowed

# Attentions that have no parameters between their projections.
ALIKE = (SoftmaxAttention, LinearAttention)


def attend_in_bands(
    attentions: Sequence[Attention],
    stacked: Sequence[int],
    stacks: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """What the attention of each band makes of it.

    To an attention that they share, bands of one length are so many samples more; where attentions differ by their
    projections alone, so are those that have one each.

    Args:
        attentions: one for each band, of one kind, perhaps one and the same.
        stacked: bands of each stack.
        stacks: (k B, n_j, width) each, k bands of one length one behind the other.
        masks: (k B, n_j) bool each, the valid rows; None: all of them.

    Returns:
        (k B, n_j, width) each, zero where nothing is valid.
    """
    mixed, first = [], 0
    for count, rows, mask in zip(stacked, stacks, masks, strict=True):
        chosen = attentions[first : first + count]
        first += count
        if all(attention is chosen[0] for attention in chosen):
            mixed.append(chosen[0](rows, BatchContext(mask)))
        elif type(chosen[0]) in ALIKE:
            mixed.append(_together(chosen, rows, mask))
        else:
            bands = _bands(rows, count)
            of_bands = [None] * count if mask is None else _bands(mask, count)
            each = zip(chosen, bands, of_bands, strict=True)
            mixed.append(torch.cat([attention(band, BatchContext(of_band)) for attention, band, of_band in each]))
    return mixed


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


def linear_of_bands(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> torch.Tensor:
    """Each layer on the samples of its band, which follow each other: (J B, n, in) -> (J B, n, out)."""
    # A compiled graph writes the products side by side without being told.
    bands = _bands(rows, len(layers))
    if torch.compiler.is_compiling() or not are_bare(layers) or multiplies(bands[0], layers[0].weight, layers[0].bias):
        return torch.cat([linear(layer, band) for layer, band in zip(layers, bands, strict=True)])
    parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
    return _LinearOfBands.apply(*narrowed(rows, *parameters))


class _LinearOfBands(torch.autograd.Function):
    """The products write where the next operation reads: no copy puts bands side by side."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        bands = rows.reshape(len(weights), -1, rows.shape[2])
        result = rows.new_empty(*bands.shape[:2], len(biases[0]))
        for band, weight, bias, into in zip(bands, weights, biases, result, strict=True):
            torch.addmm(bias, band, weight.T, out=into)
        ctx.save_for_backward(rows, *weights)
        return result.view(*rows.shape[:2], -1)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, *weights = ctx.saved_tensors
        bands = rows.reshape(len(weights), -1, rows.shape[2])
        gradients = gradient.reshape(*bands.shape[:2], -1)
        if torch.is_grad_enabled():  # no gradient follows what is written into a tensor
            of_rows = torch.stack([of_result @ weight for of_result, weight in zip(gradients, weights, strict=True)])
        else:
            of_rows = torch.empty_like(bands)
            for of_result, weight, into in zip(gradients, weights, of_rows, strict=True):
                torch.mm(of_result, weight, out=into)
        of_weights = [of_result.T @ band for of_result, band in zip(gradients, bands, strict=True)]
        return of_rows.view(*gradient.shape[:2], -1), *of_weights, *gradients.sum(1)
