"""The check of a run file's `model` section: its type and the names of its fields.

What depends on the data, or on a checkpoint that is still to be read, is left to `build.model_configuration`.
"""

from collections.abc import Iterable
from typing import Any

from longmix.data_prep.errors import UserError

from ..settings.typed_maps import Mistake, nearest

FROM = "from"
LABELS = "cannot be set: how many labels there are comes from the data; leave it out"


def field_mistakes(model: dict[str, Any], is_wrong: bool = False) -> list[Mistake]:
    """(key, what is wrong) for an unknown model type and for every key that its configuration does not have."""
    if "model_type" not in model:
        return []
    from .model_types import config_class, field_names

    try:
        cls = config_class(model["model_type"])
    except UserError as error:
        return [("model.model_type", str(error).removeprefix("model.model_type "))]
    return unknown_fields(model, cls.__name__, field_names(cls))


def quick_field_mistakes(model: dict[str, Any], is_wrong: bool) -> list[Mistake]:
    """`field_mistakes` where they cost no time: transformers stays unloaded for its own types unless something else is
    wrong (`is_wrong`). For a launcher, whose workers check them anyway."""
    return field_mistakes(model) if is_wrong else []


def unknown_fields(fields: Iterable[str], class_name: str, names: list[str]) -> list[Mistake]:
    """(key, what is wrong) for every field that is not among the sorted `names` of a configuration class."""
    return [
        (
            f"model.{key}",
            LABELS if key == "num_labels" else f"is no field of {class_name}; {nearest(str(key), names)}",
        )
        for key in fields
        if key not in names and key not in (FROM, "model_type")
    ]
