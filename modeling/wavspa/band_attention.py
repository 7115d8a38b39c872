"""Attention in WavSpA's bands: those of one length are attended in together."""

from collections.abc import Sequence

import torch
from torch import nn

from ..attention import Attention, SoftmaxAttention
from ..context import BatchContext
from ..masking import keep_valid
from ..plain_linear import are_plain
from ..precision import narrowed


def attend_in_bands(
    attentions: Sequence[Attention], bands: Sequence[torch.Tensor], masks: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """What the attention of each band makes of it.

    Softmax attention has no parameters between its projections: bands of one length are so many samples more to it.

    Args:
        attentions: one for each band, of one kind, perhaps one and the same.
        bands: (B, n_j, width) each.
        masks: (B, n_j) bool each, the valid rows; None: all of them.

    Returns:
        (B, n_j, width) each, zero where nothing is valid.
    """
    mixed: list[torch.Tensor | None] = [None] * len(bands)
    for numbers in _of_one_length(bands):
        chosen = [attentions[number] for number in numbers]
        if len(numbers) == 1 or type(chosen[0]) is not SoftmaxAttention:
            results = [attentions[number](bands[number], BatchContext(masks[number])) for number in numbers]
        else:
            results = _together(chosen, [bands[number] for number in numbers], [masks[number] for number in numbers])
        for number, result in zip(numbers, results, strict=True):
            mixed[number] = result
    return mixed


def _of_one_length(bands: Sequence[torch.Tensor]) -> list[list[int]]:
    """The numbers of the bands, those of one length together."""
    found: list[list[int]] = []
    for number, band in enumerate(bands):
        # Not looked up by its length: a graph of a layer would hold for that length alone.
        like_it = next((others for others in found if bands[others[0]].shape[1] == band.shape[1]), None)
        if like_it is None:
            found.append([number])
        else:
            like_it.append(number)
    return found


def _together(
    attentions: Sequence[SoftmaxAttention], bands: Sequence[torch.Tensor], masks: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor]:
    """Bands (B, n, width) of one length -> (B, n, width) each."""
    mask = None if masks[0] is None else torch.cat(list(masks))
    first = attentions[0]
    rows = keep_valid(torch.cat(list(bands)), mask)
    query, key, value = first.heads_of(linear_of_bands(rows, [attention.projection for attention in attentions]))
    mixed = first.attend(query, key, value, BatchContext(mask)).transpose(1, 2).flatten(2)
    mixed = keep_valid(linear_of_bands(mixed, [attention.output for attention in attentions]), mask)
    # Not by `chunk`: the size of its parts depends on the number of samples, and an export would hold for that alone.
    return mixed.unflatten(0, (len(bands), -1)).unbind()


def linear_of_bands(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> torch.Tensor:
    """Each layer on the samples of its band, which follow each other: (J B, n, in) -> (J B, n, out)."""
    if not are_plain(layers):
        bands = rows.unflatten(0, (len(layers), -1)).unbind()
        return torch.cat([layer(band) for layer, band in zip(layers, bands, strict=True)])
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
