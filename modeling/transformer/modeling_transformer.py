"""Softmax attention, the baseline of every comparison."""

import torch
from torch import nn
from torch.nn import functional

from ..block import Mixer, PostNormBlock
from ..heads import (
    MixerForCausalLM,
    MixerForMaskedLM,
    MixerForSequenceClassification,
    MixerForSequencePairClassification,
    MixerForTokenClassification,
)
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from .configuration_transformer import TransformerConfig


class SoftmaxAttention(Mixer):
    """softmax(Q K^T / sqrt(d)) V over the valid tokens of the same document (Vaswani et al., 2017, eq. 1)."""

    supports_causal = True
    isolates_documents = True
    paper_block = PostNormBlock

    def __init__(self, config: TransformerConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.heads = config.num_attention_heads
        self.projection = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Mixer."""
        batch, positions, width = hidden_states.shape
        hidden_states = keep_valid(hidden_states, attention_mask)
        projected = self.projection(hidden_states).view(batch, positions, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        allowed = self.allowed_pairs(hidden_states, attention_mask, document_ids)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=self.config.attention_probs_dropout_prob if self.training else 0.0,
            is_causal=self.config.is_causal and allowed is None,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, positions, width)
        return keep_valid(self.output(mixed), attention_mask)

    def allowed_pairs(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, document_ids: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Which keys a query sees, bool, broadcast to (B, 1, N, N); None: all of them, or all up to itself if causal.

        Every query sees a key, itself on padding, so that no row of the softmax is empty.
        """
        if document_ids is None:
            if attention_mask is None or self.config.is_causal:
                # Right-padded: what is at or before a valid token is valid.
                return None
            return (attention_mask | ~attention_mask[:, :1])[:, None, None, :]
        allowed = document_ids[:, :, None] == document_ids[:, None, :]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, :]
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        if self.config.is_causal:
            allowed = allowed & (position[:, None] >= position)
        return (allowed | (position[:, None] == position))[:, None]


class TransformerPreTrainedModel(MixerPreTrainedModel):
    """What the Transformer models share."""

    config_class = TransformerConfig
    mixer_class = SoftmaxAttention


class TransformerModel(TransformerPreTrainedModel, MixerModel):
    """See MixerModel."""


class TransformerForMaskedLM(TransformerPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = TransformerModel


class TransformerForSequenceClassification(TransformerPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = TransformerModel


class TransformerForTokenClassification(TransformerPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = TransformerModel


class TransformerForSequencePairClassification(TransformerPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = TransformerModel


class TransformerForCausalLM(TransformerPreTrainedModel, MixerForCausalLM):
    """See MixerForCausalLM."""

    encoder_class = TransformerModel
