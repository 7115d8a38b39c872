"""Configuration classes by model type: ours and those of transformers."""

import dataclasses
import difflib
from typing import Any

import transformers

import longmix.modeling
from longmix.data_prep.errors import UserError


def config_class(model_type: Any) -> type[transformers.PreTrainedConfig]:
    """The configuration class of a model type. Raises UserError, which names the nearest type, for an unknown one."""
    try:
        return transformers.CONFIG_MAPPING[model_type]
    except (KeyError, TypeError):
        close = difflib.get_close_matches(str(model_type), transformers.CONFIG_MAPPING.keys(), n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(
            f"model.model_type {model_type!r} is unknown; {hint}ours: "
            f"{', '.join(sorted(longmix.modeling.MODEL_TYPES))}; any type of transformers works too, e.g. bert"
        ) from None


def field_names(cls: type) -> list[str]:
    """The names that a run file may give to fields of a configuration class, sorted."""
    return sorted({entry.name for entry in dataclasses.fields(cls)} | set(cls.attribute_map))
