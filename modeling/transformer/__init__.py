"""Softmax attention, the baseline."""

from .configuration_transformer import TransformerConfig
from .modeling_transformer import (
    SoftmaxMixer,
    TransformerForCausalLM,
    TransformerForForecasting,
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
    "TransformerForForecasting",
    "TransformerForMaskedLM",
    "TransformerForSequenceClassification",
    "TransformerForSequencePairClassification",
    "TransformerForTokenClassification",
    "TransformerModel",
]
