"""Softmax attention, the baseline."""

from .configuration_transformer import TransformerConfig
from .modeling_transformer import (
    SoftmaxAttention,
    TransformerForMaskedLM,
    TransformerForSequenceClassification,
    TransformerForTokenClassification,
    TransformerModel,
)

__all__ = [
    "SoftmaxAttention",
    "TransformerConfig",
    "TransformerForMaskedLM",
    "TransformerForSequenceClassification",
    "TransformerForTokenClassification",
    "TransformerModel",
]
