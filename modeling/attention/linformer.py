"""Attention to a fixed number of projected keys and values (Linformer)."""

import math

import torch
from torch import nn
from transformers import initialization as init

from ..configuration import MixerConfig
from ..context import BatchContext
from ..masking import keep_valid
from .base import Attention
from .dot_product import dot_product_attention


class LinformerAttention(Attention):
    """softmax(Q (E^T K)^T / sqrt(d)) E^T V with E (positions, k), k = `linformer_rank` (Wang et al., Linformer, eq. 7).

    E is shared by heads, keys and values. A sample of n_b tokens uses its first n_b rows, its
    padded keys and values being zeroed before they are projected. The k projected keys mean no positions, so that the
    softmax needs no mask, and no causal form exists.
    """

    def __init__(self, config: MixerConfig, positions: int, width: int | None = None):
        super().__init__(config, width)
        self.sequence_projection = nn.Parameter(torch.empty(positions, config.linformer_rank))
        self.reset()

    def reset(self) -> None:
        """Entries of variance 1 / k (Linformer, theorem 2)."""
        init.normal_(self.sequence_projection, std=1 / math.sqrt(self.config.linformer_rank))

    def extend(self, positions: int) -> None:
        """See Attention; the new positions are drawn as the first ones were."""
        old = self.sequence_projection
        added = old.new_empty(positions - len(old), old.shape[1]).normal_(std=1 / math.sqrt(old.shape[1]))
        self.sequence_projection = nn.Parameter(torch.cat([old.detach(), added]), requires_grad=old.requires_grad)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        projection = self.sequence_projection[: query.shape[2]].transpose(0, 1)
        if context.mask is not None:
            key, value = (keep_valid(x.transpose(1, 2), context.mask).transpose(1, 2) for x in (key, value))
        return dot_product_attention(query, projection @ key, projection @ value, dropout_p=self.dropout_probability)
