"""Paramixer: mixing by a product of sparse factors."""

from .configuration_paramixer import ParamixerConfig
from .modeling_paramixer import (
    Paramixer,
    ParamixerBlock,
    ParamixerForCausalLM,
    ParamixerForMaskedLM,
    ParamixerForSequenceClassification,
    ParamixerForSequencePairClassification,
    ParamixerForTokenClassification,
    ParamixerModel,
)

__all__ = [
    "Paramixer",
    "ParamixerBlock",
    "ParamixerConfig",
    "ParamixerForCausalLM",
    "ParamixerForMaskedLM",
    "ParamixerForSequenceClassification",
    "ParamixerForSequencePairClassification",
    "ParamixerForTokenClassification",
    "ParamixerModel",
]
