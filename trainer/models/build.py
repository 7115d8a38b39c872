"""The model of a run file: its configuration checked, filled from the data, built or loaded."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.modeling_layers import GradientCheckpointingLayer

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..samples.collate import TOKEN_IDS, VALUES
from ..samples.shard_check import COORDINATES
from ..settings.configuration import RunConfiguration
from ..settings.objectives import FORECASTING, OBJECTIVES
from ..settings.sections import ObjectiveSection
from .field_check import FROM, unknown_fields
from .fourier import transform_in_fp32
from .loading import load_config, load_model, reason
from .model_types import config_class, field_names
from .positions import first_position
from .sizes import impossible_sizes

MOST_GRAPHS = 32
_LABEL_FIELDS = ("id2label", "label2id", "num_labels", "problem_type")


# The configuration: fields of the run file, completed from the data, and refused where they contradict them.


def model_configuration(
    configuration: RunConfiguration, manifest: Manifest, auto_class: type
) -> transformers.PreTrainedConfig:
    """The complete model configuration; vocabulary, pad id, positions and labels come from the data when absent.

    Raises:
        UserError: unknown model type or field, a value that the model refuses, a vocabulary smaller than the data's,
            a model type without the head that the objective needs.
    """
    fields = {key: value for key, value in configuration.model_fields().items() if key not in (FROM, "model_type")}
    objective = configuration.objective
    labels = {} if OBJECTIVES[objective.name].labelled is None else _labels(manifest)
    window = _window_fields(objective, manifest) if objective.name == FORECASTING else {}
    if FROM in configuration.model:
        config = _checkpoint(load_config, configuration.model[FROM])
        wanted = configuration.model.get("model_type", config.model_type)
        if wanted != config.model_type:
            raise UserError(
                f"model.model_type is {wanted}, but the checkpoint model.from is a {config.model_type}; leave it out"
            )
        _refuse_unknown(fields, type(config))
        # With labels of its own the data replaces those of the task that the checkpoint was trained for.
        kept = {key: value for key, value in config.to_dict().items() if not labels or key not in _LABEL_FIELDS}
        values = {**kept, **labels, **_causal_fields(type(config), auto_class, fields, kept), **window, **fields}
        values.pop("model_type", None)
        _refuse_sizes(values, configuration.model)
        config = _construct(lambda: type(config)(**values))
    else:
        cls = config_class(configuration.model["model_type"])
        _refuse_unknown(fields, cls)
        fields = {
            **labels,
            **_from_data(cls, manifest),
            **_causal_fields(cls, auto_class, fields, {}),
            **window,
            **fields,
        }
        if _has(cls, "buffer_seed"):
            fields.setdefault("buffer_seed", configuration.run.seed)
        _refuse_sizes(fields, configuration.model)
        config = _construct(lambda: cls(**fields))
    if manifest.vocab_size is not None and getattr(config, "vocab_size", manifest.vocab_size) < manifest.vocab_size:
        raise UserError(
            f"model.vocab_size is {config.vocab_size}, smaller than the data's vocabulary of {manifest.vocab_size}"
        )
    if type(config) not in auto_class._model_mapping:
        raise UserError(
            f"model.model_type {config.model_type} has no {auto_class.__name__}, which the objective needs; "
            f"ours have: {', '.join(sorted(longmix.modeling.MODEL_TYPES))}"
        )
    refuse_other_inputs(config, manifest)
    return config


def refuse_other_inputs(config: transformers.PreTrainedConfig, manifest: Manifest, *, is_trained: bool = False) -> None:
    """Raise UserError unless the model reads what the data hold, as long as it is.

    `is_trained`: no key of a run file changes the model any more, so that none is named as the remedy.
    """

    def refuse(field: str, found: str, remedy: str) -> None:
        named = f"the model's {field}" if is_trained else f"model.{field}"
        raise UserError(f"{named} {found}: {'take data that it was made for' if is_trained else remedy}")

    needed = _positions(config.model_type, manifest, config.pad_token_id)
    positions = getattr(config, "max_position_embeddings", None)
    if needed is not None and positions is not None and positions < needed:
        refuse(
            "max_position_embeddings",
            f"is {positions}, but the data's samples of {manifest.sequence_length} tokens need {needed}",
            "raise it, or prepare the data with a smaller --sequence-length",
        )
    channels = getattr(config, "input_channels", None)
    if TOKEN_IDS in manifest.columns and channels is not None:
        refuse("input_channels", "is set, but the data holds tokens", "leave it out")
    held = _width(manifest, VALUES)
    if held is not None and not hasattr(config, "input_channels"):
        others = ", ".join(sorted(longmix.modeling.MODEL_TYPES))
        refuse("model_type", f"{config.model_type} reads tokens, but the data holds real values", f"take {others}")
    if held is not None and channels != held:
        refuse("input_channels", f"is {channels}, but the data's values have {held} channels", f"set it to {held}")
    dimensions, given = getattr(config, "coordinate_dimensions", 0), _width(manifest, COORDINATES)
    if dimensions and manifest.columns and dimensions != given:
        found = "no coordinates" if given is None else f"coordinates of {given} dimensions"
        refuse("coordinate_dimensions", f"is {dimensions}, but the data holds {found}", "leave it out")


# The model itself, built or loaded.


def build_model(
    configuration: RunConfiguration,
    config: transformers.PreTrainedConfig,
    auto_class: type,
    notes: list[str] | None = None,
) -> transformers.PreTrainedModel:
    """Build with the run's seed, or load `model.from`; equal on every rank. fp32 parameters.

    A line about what of `model.from` is not taken over is added to `notes`.
    """
    torch.manual_seed(configuration.run.seed)
    if FROM in configuration.model:
        model = _checkpoint(load_model, configuration.model[FROM], auto_class, config, notes)
    else:
        model = auto_class.from_config(config, dtype=torch.float32)
        transform_in_fp32(model)
    if auto_class is transformers.AutoModelForCausalLM and config.model_type not in longmix.modeling.MODEL_TYPES:
        _refuse_looking_ahead(model)
    if configuration.run.gradient_checkpointing:
        _recompute_layers(model, int(configuration.run.gradient_checkpointing))
    if configuration.run.compile == "layer":
        # Of a layer there are as many graphs as kinds: the first one, those that are computed again; in training and in
        # evaluation; of one length and of any. Beyond this many torch would compile no more.
        torch._dynamo.config.recompile_limit = max(MOST_GRAPHS, torch._dynamo.config.recompile_limit)
        for layer in _layers(model, "run.compile"):
            layer.compile()
    elif configuration.run.compile:
        model.compile()
    return model


def _recompute_layers(model: transformers.PreTrainedModel, every: int) -> None:
    """Have every `every`-th layer computed again in the backward pass; the others keep what they need for it."""
    if not model.supports_gradient_checkpointing:
        raise UserError(f"run.gradient_checkpointing: {model.config.model_type} does not support it; set it to false")
    # The first name is that of the latest transformers, which warn of the second.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    if every > 1:
        for index, layer in enumerate(_layers(model, "run.gradient_checkpointing")):
            layer.gradient_checkpointing = index % every == 0


def _layers(model: transformers.PreTrainedModel, key: str) -> list[torch.nn.Module]:
    """The layers of a model, of which `key` of the run file takes each for itself."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(f"{key}: {model.config.model_type} does not tell its layers apart; set it to true or false")
    return layers


@torch.no_grad()
def _refuse_looking_ahead(model: transformers.PreTrainedModel) -> None:
    """Raise UserError if a prediction changes with the tokens after it: what makes a type causal is its own affair."""
    length = min(8, getattr(model.config, "max_position_embeddings", None) or 8)
    # The same text, with another last token, with another first one.
    tokens = (torch.arange(length) % model.config.vocab_size).repeat(3, 1)
    tokens[1, -1] = (tokens[1, -1] + 1) % model.config.vocab_size
    tokens[2, 0] = (tokens[2, 0] + 1) % model.config.vocab_size
    was_training = model.training
    model.eval()
    text, other_last, other_first = model(input_ids=tokens).logits
    model.train(was_training)
    # How much an earlier token changes is the measure: a new model's tokens hardly see each other.
    looks_back = (other_first - text)[1:].abs().amax()
    if (other_last - text)[:-1].abs().amax() > 0.1 * looks_back:
        raise UserError(
            f"model.model_type {model.config.model_type}: with these fields its causal head sees the tokens that it is "
            "to predict; objective clm needs a model that does not"
        )


# Others' constructors fail in their own ways: here their exceptions become mistakes of the run file.


def _checkpoint(load: Callable, source: str, *arguments: Any) -> Any:
    """The result of `load` on the checkpoint to start from; mistakes name the key of the run file."""
    try:
        return load(source, *arguments)
    except UserError as error:
        raise UserError(f"model.from: {error}") from None


def _construct(make) -> transformers.PreTrainedConfig:
    try:
        return make()
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise UserError(f"model: {reason(error)}") from None


def _refuse_sizes(fields: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise UserError for a size that no model has, before a configuration is made of it, which may already not end."""
    for mistake in impossible_sizes(fields):
        origin = "" if mistake.split(" ")[0] in given else " (it comes from the data's manifest, or from model.from)"
        raise UserError(f"model.{mistake}{origin}")


def _refuse_unknown(fields: Iterable[str], cls: type) -> None:
    unknown = unknown_fields(fields, cls.__name__, field_names(cls))
    if unknown:
        raise UserError("; ".join(f"{key} {text}" for key, text in unknown))


# Fields that come from the objective and from the data, where the run file does not say them.


def _has(cls: type, name: str) -> bool:
    return name in field_names(cls)


def _positions(model_type: str, manifest: Manifest, pad_token_id: int | None) -> int | None:
    """Position embeddings that the data's longest sample needs; None if the data set does not say."""
    length = manifest.sequence_length
    return None if length is None else length + first_position(model_type, pad_token_id)


def _width(manifest: Manifest, column: str) -> int | None:
    """C of a column of vectors (N, C); None if the data set has none."""
    return manifest.columns[column]["shape"][-1] if column in manifest.columns else None


def _causal_fields(cls: type, auto_class: type, fields: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The fields that make a model of this type causal, where the objective needs that. `kept` are a checkpoint's.

    Raises:
        UserError: it cannot be, or `fields` say that it is not to be.
    """
    if auto_class is not transformers.AutoModelForCausalLM:
        return {}
    because = cls.why_not_causal({**kept, **fields}) if hasattr(cls, "why_not_causal") else None
    if because is not None:
        able = (name for name in longmix.modeling.MODEL_TYPES if config_class(name).not_causal_because is None)
        raise UserError(
            f"objective clm needs a causal model, which {cls.model_type} cannot be, because {because}; "
            f"of ours these can: {', '.join(able)}"
        )
    for name in ("is_causal", "is_decoder"):
        if _has(cls, name):
            if fields.get(name, True) is not True:
                raise UserError(f"model.{name} is {fields[name]!r}, but objective clm needs true: leave it out")
            return {name: True}
    return {}


def _window_fields(objective: ObjectiveSection, manifest: Manifest) -> dict[str, Any]:
    """The fields of a forecasting head."""
    fields = {"input_length": objective.input_length, "horizon": objective.horizon}
    # Without data, which was told of, the rest of the model can be checked nevertheless.
    return fields if manifest.columns else {**fields, "input_channels": 1}


def _labels(manifest: Manifest) -> dict[str, Any]:
    """The fields of a classifier or a regression for the data's labels."""
    values: dict[str, Any] = {}
    if manifest.num_labels is not None:
        names = manifest.label_names or [f"LABEL_{index}" for index in range(manifest.num_labels)]
        values["id2label"] = dict(enumerate(names))
        values["label2id"] = {name: index for index, name in enumerate(names)}
    elif manifest.columns.get("labels", {}).get("dtype", "").startswith("float"):
        values |= {"num_labels": 1, "problem_type": "regression"}
    return values


def _from_data(cls: type, manifest: Manifest) -> dict[str, Any]:
    """Fields of the model's inputs."""
    values: dict[str, Any] = {}
    for name, value in (
        ("vocab_size", manifest.vocab_size),
        ("pad_token_id", manifest.pad_token_id),
        ("max_position_embeddings", _positions(cls.model_type, manifest, manifest.pad_token_id)),
        ("input_channels", _width(manifest, VALUES)),
        ("coordinate_dimensions", _width(manifest, COORDINATES)),
    ):
        if value is not None and _has(cls, name):
            values[name] = value
    return values
