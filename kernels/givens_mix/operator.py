"""Converter's product of Givens rotations as an operator of torch, computed by cpu.py or gpu.py."""

import torch

from ..selection import kernels
from .portable import restrict


def givens_mix(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.givens_mix`."""
    working = value.to(torch.promote_types(value.dtype, torch.float32))
    # Phases add up over the sequence, and angles may be large: they are small tables, kept in float64.
    upper, lower, phase = (angles.to(torch.float64).contiguous() for angles in (upper, lower, phase))
    order = None if permutation is None else restrict(permutation, lengths).contiguous()
    # A linear layer that makes all real parts and then all imaginary parts leaves the pairs apart: no copy for that.
    planes = not working.is_contiguous() and working.permute(0, 1, 4, 2, 3).is_contiguous()
    working = working.permute(0, 1, 4, 2, 3) if planes else working.contiguous()
    mixed = _givens_mix(working, upper, lower, phase, lengths, order, planes)
    return (mixed.permute(0, 1, 3, 4, 2) if planes else mixed).to(value.dtype)


@torch.library.custom_op("longmix::givens_mix", mutates_args=())
def _givens_mix(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> torch.Tensor:
    """Value (B, N, H, d, 2), or (B, N, 2, H, d) if `planes`, fp32 or float64; angles and phase as in ops, float64;
    order (1 or B, L, N), the valid rows of each permutation first. All are contiguous.
    """
    return kernels("givens_mix", value.device).forward(value, upper, lower, phase, lengths, order, planes)


@_givens_mix.register_fake
def _(value, upper, lower, phase, lengths, order, planes):
    return torch.empty_like(value)


@torch.library.custom_op("longmix::givens_mix_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    mixed: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    order: torch.Tensor | None,
    planes: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of value, upper, lower and phase; the stages are undone from the result `mixed`."""
    run = kernels("givens_mix", mixed.device).backward
    return run(gradient.contiguous(), mixed, upper, lower, phase, lengths, order, planes)


@_backward.register_fake
def _(gradient, mixed, upper, lower, phase, lengths, order, planes):
    return tuple(torch.empty_like(tensor) for tensor in (mixed, upper, lower, phase))


def _save(ctx, inputs, output):
    _, *tensors, ctx.planes = inputs
    ctx.save_for_backward(output, *tensors)


def _differentiate(ctx, gradient):
    return *_backward(gradient, *ctx.saved_tensors, ctx.planes), None, None, None


_givens_mix.register_autograd(_differentiate, setup_context=_save)
