"""Models: configurations and models of every mixer, registered with transformers' Auto classes."""

import importlib

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTimeSeriesPrediction,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .auto import AutoModelForSequencePairClassification
from .block import Mixer
from .configuration import MixerConfig
from .context import BatchContext
from .model import MixerModel, MixerPreTrainedModel

# The list of mixers: folder and model type -> how the names of its classes begin.
CLASS_PREFIXES = {
    "converter": "Converter",
    "flt": "FLT",
    "paramixer": "Paramixer",
    "s3attention": "S3Attention",
    "transformer": "Transformer",
    "wavspa": "WavSpA",
}
MODEL_TYPES = tuple(CLASS_PREFIXES)
# Options of `from_pretrained` that say where a checkpoint lies.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")

__all__ = [
    *CLASS_PREFIXES,
    "CLASS_PREFIXES",
    "MODEL_TYPES",
    "AutoModelForSequencePairClassification",
    "BatchContext",
    "Mixer",
    "MixerConfig",
    "MixerModel",
    "MixerPreTrainedModel",
    "load_pretrained",
    "model_class",
]


def model_class(model_type: str, suffix: str) -> type[MixerPreTrainedModel]:
    """The class of a model type by its suffix, e.g. "Model" or "ForSequencePairClassification".

    Raises:
        ValueError: unknown model type, or it has no such class.
    """
    if model_type not in CLASS_PREFIXES:
        raise ValueError(f"model_type is {model_type!r}; allowed: {', '.join(MODEL_TYPES)}")
    package, prefix = importlib.import_module(f".{model_type}", __name__), CLASS_PREFIXES[model_type]
    known = [name.removeprefix(prefix) for name in package.__all__ if name.startswith(f"{prefix}For")]
    known += ["Config", "Model"]
    if suffix not in known:
        reason = getattr(package, f"{prefix}Config").not_causal_because if suffix == "ForCausalLM" else None
        because = "" if reason is None else f", because {reason}"
        raise ValueError(f"{model_type} has no {suffix!r}{because}; allowed: {', '.join(known)}")
    return getattr(package, prefix + suffix)


def load_pretrained(source: str, **options) -> MixerPreTrainedModel:
    """The model of a checkpoint, of the class that its config.architectures names, heads without an Auto class too.

    Args:
        source: a folder, or a name on the hub.
        options: as for `from_pretrained`.

    Raises:
        ValueError: the checkpoint is none of ours, or its config.json names no class.
    """
    config = AutoConfig.from_pretrained(source, **{key: options[key] for key in HUB_OPTIONS if key in options})
    if not config.architectures:
        raise ValueError(f"{source}: architectures in config.json is empty; allowed: the class that was saved")
    name = config.architectures[0]
    prefix = CLASS_PREFIXES.get(config.model_type, name)
    return model_class(config.model_type, name.removeprefix(prefix)).from_pretrained(source, **options)


class _NoCausalModel(MixerPreTrainedModel):
    """Stand-in for the causal model of a type that has none: AutoModelForCausalLM raises an error that says why."""

    def __init__(self, config: MixerConfig):
        because = config.why_not_causal(vars(config))
        raise ValueError(f"{config.model_type} has no causal language model, because {because}")


def _register(model_type: str) -> None:
    config_class = model_class(model_type, "Config")
    AutoConfig.register(model_type, config_class)
    for auto_class, suffix in (
        (AutoModel, "Model"),
        (AutoModelForMaskedLM, "ForMaskedLM"),
        (AutoModelForSequenceClassification, "ForSequenceClassification"),
        (AutoModelForSequencePairClassification, "ForSequencePairClassification"),
        (AutoModelForTimeSeriesPrediction, "ForForecasting"),
        (AutoModelForTokenClassification, "ForTokenClassification"),
    ):
        auto_class.register(config_class, model_class(model_type, suffix))
    if config_class.not_causal_because is None:
        AutoModelForCausalLM.register(config_class, model_class(model_type, "ForCausalLM"))
        # Trainer's label smoothing shifts the labels of classes that stand here by name.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = model_class(model_type, "ForCausalLM").__name__
    else:
        AutoModelForCausalLM.register(
            config_class, type("NoCausalModel", (_NoCausalModel,), {"config_class": config_class})
        )


for _model_type in MODEL_TYPES:
    _register(_model_type)
