"""Exact attention to the nearest tokens beside an estimate of all: what random features cannot hold."""

import torch
from torch import nn
from transformers import initialization as init

from longmix.kernels import ops

from ..context import BatchContext
from .configuration_flt import FLTConfig

# Height at which a head's bias stands out at the start: of 2 * 4 + 1 tokens one then has half of the attention.
START = 2.0


class Neighbours(nn.Module):
    """(1 - s) estimate + s softmax_j(b_(j - i) + q_i k_j / sqrt d) v_j over |i - j| <= `exact_reach`, for each head.

    No part of the paper: a mask with a peak at a neighbour has rank N, and an estimate from m features has rank m
    (FL-10). The exact attention to the nearest tokens, under a mask of its own with a learned height b for each place,
    costs O(N); s, how much of a head's attention it is, is learned too.
    """

    def __init__(self, config: FLTConfig):
        super().__init__()
        self.config = config
        reach = config.exact_reach
        # Of the keys at -reach .. reach, or in a causal model at -reach .. 0.
        self.distances = range(-reach, 1 if config.is_causal else reach + 1)
        self.bias = nn.Parameter(torch.empty(config.num_attention_heads, len(self.distances)))
        self.share_logit = nn.Parameter(torch.empty(config.num_attention_heads))
        self.reset()

    def reset(self) -> None:
        """Half of the attention, and each head looks at one place: 1 to the left, 1 to the right, 2 to the left, ..."""
        heads, reach = torch.arange(self.config.num_attention_heads), self.config.exact_reach
        if self.config.is_causal:
            chosen = -1 - heads % reach
        else:
            turn = heads % (2 * reach)
            chosen = (1 + turn // 2) * (2 * (turn % 2) - 1)
        # A comparison first: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
        stands_out = chosen[:, None] - self.distances[0] == torch.arange(len(self.distances))
        init.copy_(self.bias, START * stands_out.to(torch.float32))
        init.zeros_(self.share_logit)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        estimate: torch.Tensor,
        context: BatchContext,
    ) -> torch.Tensor:
        """Queries and keys (B, H, N, d), values and estimate (B, H, N, c) -> (B, H, N, c), zero on padding."""
        before, lengths, documents = -self.distances[0], context.lengths, context.document_ids
        return ops.near_attention(query, key, value, estimate, self.bias, self.share_logit, before, lengths, documents)
