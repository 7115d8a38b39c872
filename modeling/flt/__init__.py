"""FourierLearner-Transformer."""

from .configuration_flt import FLTConfig
from .modeling_flt import (
    FLT,
    FLTForCausalLM,
    FLTForForecasting,
    FLTForMaskedLM,
    FLTForSequenceClassification,
    FLTForSequencePairClassification,
    FLTForTokenClassification,
    FLTModel,
)

__all__ = [
    "FLT",
    "FLTConfig",
    "FLTForCausalLM",
    "FLTForForecasting",
    "FLTForMaskedLM",
    "FLTForSequenceClassification",
    "FLTForSequencePairClassification",
    "FLTForTokenClassification",
    "FLTModel",
]
