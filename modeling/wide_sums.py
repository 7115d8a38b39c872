"""Layers whose gradients are sums over all rows, added up in fp32 wherever they are computed.

In half precision torch adds these sums up in half precision on CPUs (GPUs do it in fp32): they stop growing after some
hundred rows. Of 4,096 rows whose gradients have a mean of 1, that of a LayerNorm's bias is 74 % off in bf16.
"""

import torch
from torch import nn
from torch.nn import functional

from longmix.kernels.selection import stands_for


class LayerNorm(nn.LayerNorm):
    """torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not _adds_up_in_half(x):
            return super().forward(x)
        return functional.layer_norm(
            x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        ).to(x.dtype)


class Embedding(nn.Embedding):
    """torch's."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        # Not in inference, where each token that is generated would convert the whole table.
        if not (torch.is_grad_enabled() and self.weight.requires_grad and _adds_up_in_half(self.weight)):
            return super().forward(ids)
        return functional.embedding(ids, self.weight.float()).to(self.weight.dtype)


def _adds_up_in_half(x: torch.Tensor) -> bool:
    return stands_for(x.device) == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
