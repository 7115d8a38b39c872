"""Exact attention to the nearest tokens beside an estimate of all: what random features cannot hold."""

import math

import torch
from torch import nn
from transformers import initialization as init

from longmix.kernels.common.documents import document_numbers

from ..attention.windows import Windows
from ..context import BatchContext
from ..masking import keep_valid
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
        if query.shape[2] == 0:
            return estimate
        windows = Windows.over(query.shape[2], self.config.exact_reach)
        scale = math.sqrt(query.shape[-1])
        scores = windows.rows(query / scale) @ windows.around(key).transpose(-1, -2)
        wide = torch.promote_types(scores.dtype, torch.float32)
        distance = windows.distance(query.device)
        column = (distance - self.distances[0]).clamp(0, len(self.distances) - 1)
        scores = scores.to(wide) + self.bias.to(wide)[:, column][:, None]
        scores = scores.masked_fill(~self._allowed(windows, distance, context), -torch.inf)
        near = windows.join(scores.softmax(-1).to(value.dtype) @ windows.around(value))
        share = self.share_logit.to(wide).sigmoid()[:, None, None]
        mixed = ((1 - share) * estimate.to(wide) + share * near.to(wide)).to(value.dtype)
        return keep_valid(mixed.transpose(1, 2), context.mask).transpose(1, 2)

    def _allowed(self, windows: Windows, distance: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """Keys (last axis) that each row of a block sees, among them itself: bool, (B or 1, 1, C, size, keys)."""
        if context.document_ids is None:
            group = torch.zeros(1, windows.positions, dtype=torch.int64, device=distance.device)
        else:
            group = document_numbers(context.document_ids)
        if context.mask is not None:
            group = torch.where(context.mask, group, -1)
        group = windows.around_flags(group, fill=-2)  # no document
        rows = group[..., windows.outside : windows.outside + windows.size, None]
        inside = (distance >= self.distances[0]) & (distance <= self.distances[-1])
        return (inside & (rows == group[:, :, None]))[:, None]
