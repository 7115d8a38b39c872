"""Softmax attention, the baseline."""

from .configuration_transformer import TransformerConfig
from .modeling_transformer import (
    SoftmaxAttention,
    TransformerForCausalLM,
    TransformerForMaskedLM,
    TransformerForSequenceClassification,
    TransformerForSequencePairClassification,
    TransformerForTokenClassification,
    TransformerModel,
)

__all__ = [
    "SoftmaxAttention",
    "TransformerConfig",
    "TransformerForCausalLM",
    "TransformerForMaskedLM",
    "TransformerForSequenceClassification",
    "TransformerForSequencePairClassification",
    "TransformerForTokenClassification",
    "TransformerModel",
]
