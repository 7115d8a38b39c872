"""Wavelet space attention."""

from .configuration_wavspa import WavSpAConfig
from .modeling_wavspa import (
    WavSpA,
    WavSpAForForecasting,
    WavSpAForMaskedLM,
    WavSpAForSequenceClassification,
    WavSpAForSequencePairClassification,
    WavSpAForTokenClassification,
    WavSpAModel,
)

__all__ = [
    "WavSpA",
    "WavSpAConfig",
    "WavSpAForForecasting",
    "WavSpAForMaskedLM",
    "WavSpAForSequenceClassification",
    "WavSpAForSequencePairClassification",
    "WavSpAForTokenClassification",
    "WavSpAModel",
]
