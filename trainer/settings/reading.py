"""Run files into a checked configuration, every mistake in them reported at once, and back into YAML.

Nothing here touches data, a device or a model: who may know the models hands in the check of their fields.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from longmix.data_prep.errors import UserError
from longmix.data_prep.typed_maps import Mistake, build

from . import shuffling
from .configuration import RunConfiguration, section_mistakes
from .run_file import Settings, read_settings

# check(`model` of a run file, whether something else is wrong) -> mistakes; see models/field_check.py.
ModelCheck = Callable[[dict[str, Any], bool], list[Mistake]]
# Written into a run folder's config.yaml for people and ignored when that file is read again.
PROVENANCE_KEY = "provenance"


def load(
    paths: list[str],
    overrides: list[str],
    model_mistakes: ModelCheck | None = None,
    unset: dict[str, str] | None = None,
) -> RunConfiguration:
    """Read run files and `dotted.key=value` changes into a checked configuration.

    Args:
        model_mistakes: check of the keys of `model`; None: they are left unchecked.
        unset: by dotted key (of two parts) what stands where nothing sets it.

    Raises:
        UserError: all mistakes at once, each with its file, its key and the nearest valid name.
    """
    settings = read_settings(paths, overrides)
    if settings.values.pop(PROVENANCE_KEY, None) is not None:
        _as_begun(settings.values)
    for key, value in (unset or {}).items():
        section, _, name = key.partition(".")
        held = settings.values.setdefault(section, {})
        if isinstance(held, dict):
            held.setdefault(name, value)
    return from_settings(settings, model_mistakes)


def _as_begun(values: dict[str, Any]) -> None:
    """Add to the values of a run's config.yaml what versions meant that did not write it down."""
    if "data" in values:
        values["data"] = shuffling.earlier(values["data"], values.get("batch"))
    if "model_defaults" not in values:
        # An empty map stands for the defaults of then.
        model = values.get("model")
        model_type = model.get("model_type") if isinstance(model, dict) else None
        values["model_defaults"] = {model_type: {}} if isinstance(model_type, str) else {}


def from_settings(settings: Settings, model_mistakes: ModelCheck | None = None) -> RunConfiguration:
    """Build and check; see `load`."""
    mistakes: list[Mistake] = []
    configuration = build(RunConfiguration, settings.values, "", mistakes)
    mistakes += section_mistakes(configuration, noted={key for key, _ in mistakes})
    if model_mistakes is not None:
        mistakes += model_mistakes(configuration.model, bool(mistakes))
    if mistakes:
        raise UserError("; ".join(_located(key, text, settings) for key, text in mistakes))
    return configuration


def from_dict(values: dict[str, Any], origin: str, model_mistakes: ModelCheck | None = None) -> RunConfiguration:
    """Build a configuration from a map made by a program (fine-tuning); same checks as for a file."""
    settings = Settings(last=origin)
    settings.merge(values, origin)
    return from_settings(settings, model_mistakes)


def dump(configuration: RunConfiguration, provenance: dict[str, Any]) -> str:
    """The resolved configuration as YAML that `load` accepts."""
    return yaml.safe_dump(
        {**configuration.to_dict(), PROVENANCE_KEY: provenance}, sort_keys=False, allow_unicode=True, width=120
    )


def _located(key: str, text: str, settings: Settings) -> str:
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    where = next((settings.origin[name] for name in names if name in settings.origin), settings.last)
    return f"{where}: {key} {text}"
