"""What is trained: configurations and models of every mixer, registered with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from . import s3attention, transformer
from .block import Mixer
from .configuration import MixerConfig
from .model import MixerModel, MixerPreTrainedModel

MODEL_TYPES = ("s3attention", "transformer")

__all__ = ["MODEL_TYPES", "Mixer", "MixerConfig", "MixerModel", "MixerPreTrainedModel", "s3attention", "transformer"]


def _register(package, prefix: str) -> None:
    config_class = getattr(package, f"{prefix}Config")
    AutoConfig.register(config_class.model_type, config_class)
    for auto_class, suffix in (
        (AutoModel, "Model"),
        (AutoModelForMaskedLM, "ForMaskedLM"),
        (AutoModelForSequenceClassification, "ForSequenceClassification"),
        (AutoModelForTokenClassification, "ForTokenClassification"),
    ):
        auto_class.register(config_class, getattr(package, f"{prefix}{suffix}"))


_register(s3attention, "S3Attention")
_register(transformer, "Transformer")
