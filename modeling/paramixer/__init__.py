"""Paramixer: mixing by a product of sparse factors."""

from .configuration_paramixer import ParamixerConfig
from .modeling_paramixer import (
    Paramixer,
    ParamixerBlock,
    ParamixerForCausalLM,
    ParamixerForForecasting,
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
    "ParamixerForForecasting",
    "ParamixerForMaskedLM",
    "ParamixerForSequenceClassification",
    "ParamixerForSequencePairClassification",
    "ParamixerForTokenClassification",
    "ParamixerModel",
]
