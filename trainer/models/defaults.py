"""The defaults of a model's fields, noted with its run: a later change of a default changes no run.

`model_defaults` in the config.yaml of a run holds every field of the model's configuration that no run file sets and
nothing else decides. Who goes on with the run has those, whatever today's defaults are. To change a default, or to add
a field that changes what a model does, give the configuration class the meaning of before in `earlier_defaults`: it
holds for runs without `model_defaults`, and for a config.json in which the field is missing.
"""

from dataclasses import replace
from typing import Any

from ..settings.configuration import RunConfiguration
from .field_check import FROM
from .fields import default_fields, earlier_default_fields


def with_defaults(now: RunConfiguration, begun: RunConfiguration | None = None) -> RunConfiguration:
    """The configuration with `model_defaults`; those of a model to start from (`model.from`) are the checkpoint's own.

    Args:
        begun: the configuration that the run was begun with; None: it begins now.
    """
    model_type = now.model.get("model_type")
    if FROM in now.model or model_type is None:
        return replace(now, model_defaults={})
    source = begun or now
    noted = {}
    if model_type in source.model_defaults:
        # A field that is missing came later, or is from before any were noted (an empty map: see reading.load).
        earlier = earlier_default_fields(model_type).items()
        noted = {name: value for name, value in earlier if name not in source.model}
        noted |= source.model_defaults[model_type]
    today = default_fields(model_type)
    named = {name: noted.get(name, value) for name, value in today.items() if name not in now.model}
    return replace(now, model_defaults={model_type: named} if named else {})


def defaults_of_model(configuration: RunConfiguration, fields: dict[str, Any]) -> RunConfiguration:
    """The configuration with the defaults that its run was begun with, by a model that it has saved.

    Args:
        fields: of the saved model's config.json; one that is missing came later.
    """
    model_type = configuration.model.get("model_type")
    if FROM in configuration.model or fields.get("model_type") != model_type:
        return configuration
    known = {**earlier_default_fields(model_type), **fields}
    noted = {name: known[name] for name in default_fields(model_type) if name in known}
    return replace(configuration, model_defaults={model_type: noted})
