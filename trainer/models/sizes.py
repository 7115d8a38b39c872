"""The size of a model before it is built, and sizes that no model has: nothing here takes memory or time with them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from longmix.data_prep.errors import UserError, reason_of

# No embedding has so many rows, no layer such a width; and each layer is an object, which takes memory and time however
# few parameters it has.
LARGEST_SIZE, MOST_LAYERS = 2**28, 2**20
_LAYERS = re.compile(r"layers?(_|$)|blocks?(_|$)|experts?(_|$)|depths?(_|$)|stages?(_|$)|groups?(_|$)")
# Integers that count nothing which the model holds: ids, seeds, and how far it looks.
_NO_SIZES = re.compile(r"_ids?(_|$)|seed|position|length|window|context|ctx|theta|_token(_|$)")
# Models of more layers are measured by few of them: those after the second are equal.
_FEW_LAYERS = 64


@dataclass(frozen=True)
class ModelSize:
    """What a model would hold.

    Attributes:
        model: on the meta device; of many layers, which are equal, it has three.
        parameters: all of them.
        embeddings: those of embeddings of tokens and positions.
        layers, layer_parameters: of a model of many layers, how many, and the parameters of each; else 0.
        largest: name and shape of the largest parameter.
    """

    model: transformers.PreTrainedModel
    parameters: int
    embeddings: int
    layers: int
    layer_parameters: int
    largest: tuple[str, tuple[int, ...]]


def impossible_sizes(fields: Mapping[str, Any], prefix: str = "", most_layers: int = MOST_LAYERS) -> Iterator[str]:
    """What is wrong, in words, with each field of a configuration (and of the maps in it) that no model can have."""
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from impossible_sizes(value, f"{prefix}{key}.", most_layers)
        if type(value) is not int or not isinstance(key, str):
            continue
        most = most_layers if _LAYERS.search(key) else LARGEST_SIZE
        if value > most and not _NO_SIZES.search(key):
            yield f"{prefix}{key} is {value}, but no model that can be built has more than {most}"


def measure(config: transformers.PreTrainedConfig, auto_class: type) -> ModelSize:
    """The size of the model of a configuration.

    Raises:
        UserError: the configuration's values do not fit together.
    """
    layers = getattr(config, "num_hidden_layers", 0)
    if not isinstance(layers, int) or layers <= _FEW_LAYERS:
        return _size(_on_meta(config, auto_class))
    two, three = (_size(_on_meta(with_layers(config, count), auto_class)) for count in (2, 3))
    each = three.parameters - two.parameters
    if each <= 0:  # they share their parameters, or another field counts them
        return _size(_on_meta(config, auto_class))
    return ModelSize(three.model, two.parameters + (layers - 2) * each, three.embeddings, layers, each, three.largest)


def with_layers(config: transformers.PreTrainedConfig, layers: int) -> transformers.PreTrainedConfig:
    """The configuration with another number of layers."""
    values = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "layer_types")}
    return type(config)(**{**values, "num_hidden_layers": layers})


def _on_meta(config: transformers.PreTrainedConfig, auto_class: type) -> transformers.PreTrainedModel:
    try:
        with torch.device("meta"):
            return auto_class.from_config(config)
    except Exception as error:  # whatever a foreign constructor stumbles over comes from these values
        reason = f"KeyError {reason_of(error)}" if isinstance(error, KeyError) else reason_of(error)
        raise UserError(f"model: no {config.model_type} can be built from these fields: {reason}") from None


def _size(model: transformers.PreTrainedModel) -> ModelSize:
    parameters, outside = count_parameters(model)
    named = [(parameter.numel(), name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    _, name, shape = max(named, default=(0, "", ()))
    return ModelSize(model, parameters, parameters - outside, 0, 0, (name, shape))


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """(all parameters, those outside embeddings of tokens and positions)."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters()
    }
    counted = {id(parameter): parameter.numel() for parameter in model.parameters()}
    return sum(counted.values()), sum(size for key, size in counted.items() if key not in embeddings)
