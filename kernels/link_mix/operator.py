"""Paramixer's product of sparse factors as an operator of torch, computed by cpu.py or gpu.py."""

import torch

from ..common.rows import valid_rows
from ..selection import kernels
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
    return _link_mix(value.contiguous(), weights.contiguous(), offsets, lengths, document_ids, wrap)


@torch.library.custom_op("longmix::link_mix", mutates_args=())
def _link_mix(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    wrap: bool,
) -> torch.Tensor:
    """All factors on value (B, N, D) and weights (B, N, M, K) of any floating dtypes; all are contiguous."""
    *arguments, valid = _prepare(value, weights, offsets, lengths, document_ids)
    result = kernels("link_mix", value.device).forward(*arguments, wrap)
    return _clear(result, valid).to(value.dtype)


@_link_mix.register_fake
def _(value, weights, offsets, lengths, document_ids, wrap):
    return torch.empty_like(value)


@torch.library.custom_op("longmix::link_mix_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    wrap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of value and weights; the factors' inputs are computed anew."""
    *arguments, valid = _prepare(value, weights, offsets, lengths, document_ids)
    gradient = gradient.to(arguments[0].dtype).contiguous()
    of_value, of_weights = kernels("link_mix", value.device).backward(gradient, *arguments, wrap)
    return _clear(of_value, valid).to(value.dtype), _clear(of_weights, valid).to(weights.dtype)


@_backward.register_fake
def _(gradient, value, weights, offsets, lengths, document_ids, wrap):
    return torch.empty_like(value), torch.empty_like(weights)


def _prepare(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """What the kernels take, value and weights in fp32 or float64, start and length (B, N) of each row's document; and
    the valid rows, (B, N), or None.
    """
    working, shape = torch.promote_types(value.dtype, torch.float32), value.shape[:2]
    start, length = (part.expand(shape).contiguous() for part in spans(shape[1], lengths, document_ids, value.device))
    return value.to(working), weights.to(working), offsets, start, length, valid_rows(lengths, shape[1])


def _clear(rows: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """`rows` (B, N, ...) with zeros in those that are not valid, in place.

    Links do not leave their documents, so what padding holds, NaN too, has stayed there: nothing need be masked before.
    """
    if valid is None:
        return rows
    return rows.masked_fill_(~valid.reshape(*valid.shape, *[1] * (rows.dim() - 2)), 0)


def _save(ctx, inputs, output):
    *tensors, ctx.wrap = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, gradient):
    return (*_backward(gradient, *ctx.saved_tensors, ctx.wrap), None, None, None, None)


_link_mix.register_autograd(_differentiate, setup_context=_save)
