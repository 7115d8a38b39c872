"""Softmax attention, the baseline."""

from .configuration_transformer import TransformerConfig
from .modeling_transformer import (
    SoftmaxMixer,
    TransformerForCausalLM,
    TransformerForMaskedLM,
    TransformerForSequenceClassification,
    TransformerForSequencePairClassification,
    TransformerForTokenClassification,
    TransformerModel,
)

__all__ = [
    "SoftmaxMixer",
    "TransformerConfig",
    "TransformerForCausalLM",
    "TransformerForMaskedLM",
    "TransformerForSequenceClassification",
    "TransformerForSequencePairClassification",
    "TransformerForTokenClassification",
    "TransformerModel",
]
