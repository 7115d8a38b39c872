"""Heads with rotary positions as operators of torch."""

import torch

from ..operators import differentiate, operator


def rotary_heads(
    kernels: str, projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.rotary_heads`."""
    heads = _forward(kernels, projected.contiguous(), cosine.contiguous(), sine.contiguous())
    return tuple(part.transpose(1, 2) for part in heads)


@operator(__package__, "rotary_heads")
def _forward(
    kernels: str, projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, N, 3, H, d) -> three tensors (B, N, H, d). All arguments are contiguous."""
    batch, positions, parts, heads, features = projected.shape
    return tuple(projected.new_empty(batch, positions, heads, features) for _ in range(parts))


@operator(__package__, "rotary_heads_backward")
def _backward(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
) -> torch.Tensor:
    """The gradients of the three, each contiguous -> that of what they were made of, (B, N, 3, H, d)."""
    batch, positions, heads, features = query.shape
    return query.new_empty(batch, positions, 3, heads, features)


def _keep_angles(output: object, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return arguments[-2:]


def _gradient(
    kernels: str,
    needed: list[bool],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
) -> tuple[torch.Tensor]:
    return (_backward(kernels, query, key, value, cosine, sine),)


def _gradients_of_gradient(
    kernels: str, needed: list[bool], gradient: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return _forward(kernels, gradient, cosine, sine)


differentiate(_forward, _gradient, _keep_angles, results=3)
differentiate(_backward, _gradients_of_gradient, _keep_angles)
