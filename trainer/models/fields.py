"""The configuration fields of our own model types, for checks before anything heavy is imported.

They are read from the sources: importing the classes means importing torch and transformers, which takes seconds, and
a second list of the fields would go stale with every change here or in transformers.
"""

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple


class ModelFields(NamedTuple):
    """Name of a configuration class, and the sorted names of its fields, inherited ones included."""

    class_name: str
    names: list[str]


def model_fields(model_type: object) -> ModelFields | None:
    """The configuration fields of one of our model types; None: not ours, or the class itself must be asked."""
    modeling = _folder("longmix.modeling")
    ours = {path.parent.name: path for path in modeling.glob("*/configuration_*.py")}
    if not isinstance(model_type, str) or model_type not in ours:
        return None
    own, shared = _config_class(ours[model_type]), _config_class(modeling / "configuration.py")
    inherited = _config_class(_folder("transformers") / "configuration_utils.py", "PreTrainedConfig")
    if inherited is None:
        return None
    return ModelFields(own.name, sorted(_fields(own) | _fields(shared) | _fields(inherited)))


def _folder(package: str) -> Path:
    """The folder of a package, which is not imported."""
    return Path(importlib.util.find_spec(package).origin).parent


def _config_class(path: Path, ending: str = "Config") -> ast.ClassDef | None:
    """The class of a source file whose name ends so; None if it has none."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name.endswith(ending)), None)


def _fields(node: ast.ClassDef) -> set[str]:
    """Names of the fields that a dataclass declares itself."""
    declared = (entry for entry in node.body if isinstance(entry, ast.AnnAssign))
    return {entry.target.id for entry in declared if not ast.unparse(entry.annotation).startswith("ClassVar")}
