"""Wavelet space attention."""

from .configuration_wavspa import WavSpAConfig
from .modeling_wavspa import (
    WavSpA,
    WavSpAForMaskedLM,
    WavSpAForSequenceClassification,
    WavSpAForSequencePairClassification,
    WavSpAForTokenClassification,
    WavSpAModel,
)

__all__ = [
    "WavSpA",
    "WavSpAConfig",
    "WavSpAForMaskedLM",
    "WavSpAForSequenceClassification",
    "WavSpAForSequencePairClassification",
    "WavSpAForTokenClassification",
    "WavSpAModel",
]
