"""The configuration fields of our own model types, for checks before anything heavy is imported.

They are read from the sources: importing the classes means importing torch and transformers, which takes seconds, and
a second list of the fields would go stale with every change here or in transformers.
"""

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Fields that follow from the data, the objective or run.seed where a run file does not set them.
FOLLOWING = (
    *("vocab_size", "pad_token_id", "max_position_embeddings", "input_channels", "coordinate_dimensions"),
    *("input_length", "horizon", "is_causal", "buffer_seed"),
)


class ModelFields(NamedTuple):
    """The fields of a configuration class.

    Attributes:
        names: of all its fields, inherited ones included, sorted.
        defaults: by name, of the fields that are ours.
        earlier_defaults: those that earlier versions had, where they had another one, or had not the field but did as
            if it stood there.
    """

    class_name: str
    names: list[str]
    defaults: dict[str, Any]
    earlier_defaults: dict[str, Any]


def model_fields(model_type: object) -> ModelFields | None:
    """The configuration fields of one of our model types; None: not ours, or the class itself must be asked."""
    return _model_fields(model_type) if isinstance(model_type, str) else None


@cache
def _model_fields(model_type: str) -> ModelFields | None:
    modeling = _folder("longmix.modeling")
    ours = {path.parent.name: path for path in modeling.glob("*/configuration_*.py")}
    if model_type not in ours:
        return None
    own, shared = _config_class(ours[model_type]), _config_class(modeling / "configuration.py")
    inherited = _config_class(_folder("transformers") / "configuration_utils.py", "PreTrainedConfig")
    if inherited is None:
        return None
    defaults = {**_defaults(shared), **_defaults(own)}
    names = sorted(defaults.keys() | _defaults(inherited, are_ours=False).keys())
    return ModelFields(own.name, names, defaults, _constant(own, "earlier_defaults") or {})


def default_fields(model_type: object) -> dict[str, Any]:
    """What a run of this version notes as the model's defaults: the fields that nothing else decides."""
    fields = model_fields(model_type)
    return {} if fields is None else {name: fields.defaults[name] for name in fields.defaults if name not in FOLLOWING}


def earlier_default_fields(model_type: object) -> dict[str, Any]:
    """The defaults of runs from before they were noted, where they differ from those of this version."""
    fields = model_fields(model_type)
    return {} if fields is None else fields.earlier_defaults


def _folder(package: str) -> Path:
    """The folder of a package, which is not imported."""
    return Path(importlib.util.find_spec(package).origin).parent


def _config_class(path: Path, ending: str = "Config") -> ast.ClassDef | None:
    """The class of a source file whose name ends so; None if it has none."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name.endswith(ending)), None)


def _defaults(node: ast.ClassDef, are_ours: bool = True) -> dict[str, Any]:
    """The fields that a dataclass declares itself, with their defaults, which are literals where they `are_ours`."""
    declared = (entry for entry in node.body if isinstance(entry, ast.AnnAssign))
    return {
        entry.target.id: ast.literal_eval(entry.value) if are_ours else None
        for entry in declared
        if not ast.unparse(entry.annotation).startswith("ClassVar")
    }


def _constant(node: ast.ClassDef, name: str) -> Any:
    """The literal that a class gives to one of its variables; None if it does not."""
    entries = (entry for entry in node.body if isinstance(entry, ast.AnnAssign) and entry.target.id == name)
    return next((ast.literal_eval(entry.value) for entry in entries), None)
