"""Heads with rotary positions by multiplications of complex numbers, in float64."""

import torch


def rotary_heads(
    projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.rotary_heads`."""
    half = projected.shape[-1] // 2
    factors = torch.complex(cosine[..., :half].double(), sine[..., half:].double())
    query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    return _turn(query, factors), _turn(key, factors), value


def _turn(features: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    half = features.shape[-1] // 2
    turned = torch.complex(features[..., :half].double(), features[..., half:].double()) * factors
    return torch.cat([turned.real, turned.imag], -1).to(features.dtype)
