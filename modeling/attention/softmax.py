"""Softmax attention."""

import math

import torch

from longmix.kernels.common.documents import same_document

from ..context import BatchContext
from ..masking import keep_valid
from .base import Attention
from .dot_product import dot_product_attention
from .variable_length import kernel_for, variable_length_attention


class SoftmaxAttention(Attention):
    """softmax(Q K^T / sqrt(d)) V over the valid tokens of the same document (Vaswani et al., 2017, eq. 1).

    With `config.is_causal` a token sees itself and what stands before it. On GPUs documents and padding are segments of
    a flat batch (`variable_length`); elsewhere, and where the segments are not known, they are a mask.
    """

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        kernel = kernel_for(query, self.dropout_probability)
        segments = None if kernel is None else context.segments
        if segments is not None:
            return variable_length_attention(
                query, key, value, segments, kernel, causal=self.config.is_causal, dropout=self.dropout_probability
            )
        allowed = self.allowed_pairs(query, context)
        return dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=self.dropout_probability,
            is_causal=self.config.is_causal and allowed is None,
        )

    def weights(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The matrices that `forward` applies to the values, (B, H, N, N), without dropout, zero on padding."""
        query, key, _ = self.placed(hidden_states, context)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        allowed = self.allowed_pairs(query, context)
        if allowed is None and self.config.is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if allowed is not None:
            scores = torch.where(allowed, scores, -torch.inf)
        return keep_valid(scores.softmax(-1).transpose(1, 2), context.mask).transpose(1, 2)

    def allowed_pairs(self, query: torch.Tensor, context: BatchContext) -> torch.Tensor | None:
        """Keys that a query sees, bool, broadcast to (B, 1, N, N); None: all of them, or all up to itself if causal.

        Every query sees a key, itself on padding, so that no row of the softmax is empty.
        """
        mask = context.mask
        if context.document_ids is None:
            if mask is None or self.config.is_causal:
                # Right-padded: what is at or before a valid token is valid.
                return None
            return (mask | ~mask[:, :1])[:, None, None, :]
        allowed = same_document(context.document_ids)
        if mask is not None:
            allowed = allowed & mask[:, None, :]
        position = torch.arange(query.shape[2], device=query.device)
        if self.config.is_causal:
            allowed = allowed & (position[:, None] >= position)
        return (allowed | (position[:, None] == position))[:, None]
