"""Smoothed skeleton sketching attention."""

from .configuration_s3attention import S3AttentionConfig
from .modeling_s3attention import (
    S3Attention,
    S3AttentionForForecasting,
    S3AttentionForMaskedLM,
    S3AttentionForSequenceClassification,
    S3AttentionForSequencePairClassification,
    S3AttentionForTokenClassification,
    S3AttentionModel,
)

__all__ = [
    "S3Attention",
    "S3AttentionConfig",
    "S3AttentionForForecasting",
    "S3AttentionForMaskedLM",
    "S3AttentionForSequenceClassification",
    "S3AttentionForSequencePairClassification",
    "S3AttentionForTokenClassification",
    "S3AttentionModel",
]
