"""Softmax attention."""

import math

import torch
from torch.nn import functional

from longmix.kernels.common.documents import same_document

from ..masking import keep_valid
from .base import Attention


class SoftmaxAttention(Attention):
    """softmax(Q K^T / sqrt(d)) V over the valid tokens of the same document (Vaswani et al., 2017, eq. 1).

    With `config.is_causal` a token sees itself and what stands before it.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As in Attention; a run of equal `document_ids` (B, N) int64 is one document."""
        query, key, value = self.project(hidden_states, attention_mask)
        allowed = self.allowed_pairs(query, attention_mask, document_ids)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=self.dropout_probability,
            is_causal=self.config.is_causal and allowed is None,
        )
        return self.join(mixed, attention_mask)

    def weights(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The matrices that `forward` applies to the values, (B, H, N, N), without dropout, zero on padding."""
        query, key, _ = self.project(hidden_states, attention_mask)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        allowed = self.allowed_pairs(query, attention_mask, document_ids)
        if allowed is None and self.config.is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if allowed is not None:
            scores = torch.where(allowed, scores, -torch.inf)
        return keep_valid(scores.softmax(-1).transpose(1, 2), attention_mask).transpose(1, 2)

    def allowed_pairs(
        self, query: torch.Tensor, attention_mask: torch.Tensor | None, document_ids: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Which keys a query sees, bool, broadcast to (B, 1, N, N); None: all of them, or all up to itself if causal.

        Every query sees a key, itself on padding, so that no row of the softmax is empty.
        """
        if document_ids is None:
            if attention_mask is None or self.config.is_causal:
                # Right-padded: what is at or before a valid token is valid.
                return None
            return (attention_mask | ~attention_mask[:, :1])[:, None, None, :]
        allowed = same_document(document_ids)
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, :]
        position = torch.arange(query.shape[2], device=query.device)
        if self.config.is_causal:
            allowed = allowed & (position[:, None] >= position)
        return (allowed | (position[:, None] == position))[:, None]
