"""Paramixer's product of sparse factors as an operator of torch, computed by cpu.py or gpu.py."""

import torch

from ..rows import keep_valid, valid_rows
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
    working = torch.promote_types(value.dtype, torch.float32)
    shape = value.shape[:2]
    start, length = (part.expand(shape).contiguous() for part in spans(shape[1], lengths, document_ids, value.device))
    mixed, links = value.to(working), weights.to(working)
    valid = valid_rows(lengths, shape[1])
    mixed, links = keep_valid(mixed, valid), keep_valid(links, valid)
    mixed = _link_mix(mixed.contiguous(), links.contiguous(), offsets, start, length, wrap)
    return keep_valid(mixed, valid).to(value.dtype)


@torch.library.custom_op("longmix::link_mix", mutates_args=())
def _link_mix(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    start: torch.Tensor,
    length: torch.Tensor,
    wrap: bool,
) -> torch.Tensor:
    """All factors on value (B, N, D), contiguous, fp32 or float64; start and length (B, N) of each row's document.

    Rows of padding hold zeros in value and weights.
    """
    return kernels("link_mix", value.device).forward(value, weights, offsets, start, length, wrap)


@_link_mix.register_fake
def _(value, weights, offsets, start, length, wrap):
    return torch.empty_like(value)


@torch.library.custom_op("longmix::link_mix_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    start: torch.Tensor,
    length: torch.Tensor,
    wrap: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of value and weights; the factors' inputs are computed anew."""
    run = kernels("link_mix", value.device).backward
    return run(gradient.contiguous(), value, weights, offsets, start, length, wrap)


@_backward.register_fake
def _(gradient, value, weights, offsets, start, length, wrap):
    return torch.empty_like(value), torch.empty_like(weights)


def _save(ctx, inputs, output):
    *tensors, ctx.wrap = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, gradient):
    return (*_backward(gradient, *ctx.saved_tensors, ctx.wrap), None, None, None, None)


_link_mix.register_autograd(_differentiate, setup_context=_save)
