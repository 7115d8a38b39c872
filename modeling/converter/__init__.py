"""Converter: synthetic unitary digraph convolution."""

from .configuration_converter import ConverterConfig
from .modeling_converter import (
    Converter,
    ConverterForForecasting,
    ConverterForMaskedLM,
    ConverterForSequenceClassification,
    ConverterForSequencePairClassification,
    ConverterForTokenClassification,
    ConverterModel,
)

__all__ = [
    "Converter",
    "ConverterConfig",
    "ConverterForForecasting",
    "ConverterForMaskedLM",
    "ConverterForSequenceClassification",
    "ConverterForSequencePairClassification",
    "ConverterForTokenClassification",
    "ConverterModel",
]
