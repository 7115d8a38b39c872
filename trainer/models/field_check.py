"""The check of a run file's `model` section: its type and the names of its fields.

What depends on the data, or on a checkpoint that is still to be read, is left to `build.model_configuration`.
"""

from collections.abc import Iterable
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.typed_maps import Mistake, nearest

from .fields import model_fields
from .foreign_code import foreign_code_mistakes

FROM = "from"


def field_mistakes(model: dict[str, Any], is_wrong: bool = False) -> list[Mistake]:
    """(key, what is wrong) for an unknown model type, for every key that its configuration does not have, and for what
    asks for foreign code.

    Whether anything else `is_wrong` makes no difference here. For types that are not ours transformers is loaded.
    """
    # Those of the section itself are no fields of any type.
    nested = [mistake for key, value in model.items() for mistake in foreign_code_mistakes(value, f"model.{key}.")]
    if "model_type" not in model:
        return nested
    known = model_fields(model["model_type"])
    if known is not None:
        return nested + unknown_fields(model, known.class_name, known.names)
    from .model_types import config_class, field_names

    try:
        cls = config_class(model["model_type"])
    except UserError as error:
        return [("model.model_type", str(error).removeprefix("model.model_type "))]
    return nested + unknown_fields(model, cls.__name__, field_names(cls))


def quick_field_mistakes(model: dict[str, Any], is_wrong: bool) -> list[Mistake]:
    """Mistakes as `field_mistakes` finds them, but types of transformers are left unchecked while nothing else is wrong
    (`is_wrong`): for commands that need no model, and for a launcher, whose workers check them anyway."""
    is_quick = model_fields(model.get("model_type")) is not None
    return field_mistakes(model) if is_wrong or is_quick else []


def unknown_fields(fields: Iterable[str], class_name: str, names: list[str]) -> list[Mistake]:
    """(key, what is wrong) for every field that is not among the `names` of a configuration class."""
    labels = "cannot be set: how many labels there are comes from the data; leave it out"
    return [
        (f"model.{key}", labels if key == "num_labels" else f"is no field of {class_name}; {nearest(str(key), names)}")
        for key in fields
        if key not in names and key not in (FROM, "model_type")
    ]
