"""Converter: synthetic unitary digraph convolution."""

from .configuration_converter import ConverterConfig
from .modeling_converter import (
    Converter,
    ConverterForMaskedLM,
    ConverterForSequenceClassification,
    ConverterForSequencePairClassification,
    ConverterForTokenClassification,
    ConverterModel,
)

__all__ = [
    "Converter",
    "ConverterConfig",
    "ConverterForMaskedLM",
    "ConverterForSequenceClassification",
    "ConverterForSequencePairClassification",
    "ConverterForTokenClassification",
    "ConverterModel",
]
