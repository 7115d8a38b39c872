"""A model folder that stands alone: the model's own code beside its weights, for transformers to run.

`from_pretrained(folder, trust_remote_code=True)` reads `auto_map` in config.json, which names the file and the class
for each Auto class. Where longmix is imported its own classes are used instead, and the code in the folder is not run.
"""

import importlib.metadata
import json
import re
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_json, write_text

from ..models.folder import CONFIGURATION
from ..models.loading import has_tokenizer, load_config
from ..tables.text import escaped, quoted, yaml_word
from .card import CARD, LOAD_WITH_LONGMIX, with_title
from .flat_code import LICENCE, PACKAGE, FlatCode, flat_name, is_flat_file

HEADING = "## Loading it without longmix"
# Stands in a card in place of LOAD_WITH_LONGMIX.
CODE_IS_HERE = "Its code is in this folder."
# The place that an example of `_example` loads from.
_PLACE = re.compile(r'(from_pretrained\(|get_class_from_dynamic_module\("[^"]*", )"(?:[^"\\\n]|\\.)*"')


def check_model_type(folder: Path) -> None:
    """Raise UserError unless the folder's configuration can be read and is of one of our types."""
    model_type = load_config(str(folder)).model_type
    if model_type not in longmix.modeling.MODEL_TYPES:
        raise UserError(
            f"--self-contained adds the code of {', '.join(longmix.modeling.MODEL_TYPES)}; {folder} is a {model_type}, "
            "whose code transformers has: leave it out"
        )


def add_code(folder: Path, name: str) -> None:
    """Write the model's code into its folder, into config.json where it lies, and into the card how to load it.

    Code of an earlier export is replaced.

    Args:
        folder: holds a model of one of our types (`check_model_type`).
        name: what the card calls the folder.
    """
    config = load_config(str(folder))
    classes = _auto_classes(config)
    _remove_files(folder)
    code = FlatCode(cls.__module__ for cls in classes.values())
    for file, text in code.files.items():
        write_text(folder / file, text)
    values = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
    values["auto_map"] = {auto_class: _reference(cls) for auto_class, cls in classes.items()}
    write_json(folder / CONFIGURATION, values)
    write_text(folder / CARD, _card(folder, name, config, classes, code.requirements))


def remove_code(folder: Path) -> None:
    """Undo `add_code`: a folder for those who have longmix."""
    _remove_files(folder)
    values = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
    values.pop("auto_map", None)
    write_json(folder / CONFIGURATION, values)
    path = folder / CARD
    if path.is_file():
        card = _without_section(path.read_text(encoding="utf-8")).replace(CODE_IS_HERE, LOAD_WITH_LONGMIX)
        if LOAD_WITH_LONGMIX not in card:
            card = f"{card}\n\n{LOAD_WITH_LONGMIX}"
        write_text(path, f"{card}\n")


def with_name(card: str, name: str) -> str:
    """A card with the title `name`, whose section on loading, if there is one, loads from it: where the folder has
    gone to.
    """
    before, heading, section = with_title(card, name).partition(f"\n{HEADING}\n")
    return before + heading + _PLACE.sub(lambda found: found[1] + quoted(name), section)


def _remove_files(folder: Path) -> None:
    for path in filter(is_flat_file, list(folder.iterdir())):
        path.unlink()


def _without_section(card: str) -> str:
    """A card without the section on loading, and without white space at its end."""
    return re.sub(rf"^{HEADING}\n.*?(?=^## |\Z)", "", card, flags=re.MULTILINE | re.DOTALL).rstrip()


def _auto_classes(config: transformers.PreTrainedConfig) -> dict[str, type]:
    """Our class for each Auto class, by its name, that the configuration's type is registered with."""
    found = {"AutoConfig": type(config)}
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if isinstance(auto_class, type) and mapping is not None and type(config) in mapping:
            found[name] = mapping[type(config)]
    if config.not_causal_because is not None:
        del found["AutoModelForCausalLM"]  # it only says why there is none
    if config.horizon is None:
        del found["AutoModelForTimeSeriesPrediction"]  # it needs what only a model that forecasts has
    return found


def _reference(cls: type) -> str:
    """File and name of a class, as auto_map has them."""
    return f"{flat_name(cls.__module__)}.{cls.__name__}"


def _card(
    folder: Path, name: str, config: transformers.PreTrainedConfig, classes: dict[str, type], requirements: set[str]
) -> str:
    """The model card of the folder with a section on loading, its last; a new card if there is none."""
    path = folder / CARD
    if path.is_file():
        card = _without_section(path.read_text(encoding="utf-8").replace(LOAD_WITH_LONGMIX, CODE_IS_HERE))
    else:
        tags = f"[longmix, {yaml_word(config.model_type)}]"
        card = f"---\nlibrary_name: transformers\ntags: {tags}\n---\n\n# {escaped(name)}"
    distributions = importlib.metadata.packages_distributions()
    needed = sorted(distributions.get(module, [module])[0] for module in requirements)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in needed)
    return f"""{card}

{HEADING}

```python
{_example(folder, name, config, classes)}
```

This runs the `.py` files here, which import {versions}: take these versions, or nearby ones.
After `import longmix.modeling` they are not run. They are part of {PACKAGE} {importlib.metadata.version(PACKAGE)}
({LICENCE}); `longmix export` has changed their imports.
"""


def _example(folder: Path, name: str, config: transformers.PreTrainedConfig, classes: dict[str, type]) -> str:
    """Python that loads the model with the head it was saved with, and its tokenizer."""
    head = (config.architectures or [classes["AutoModel"].__name__])[0]
    auto_class = next((auto_class for auto_class, cls in classes.items() if cls.__name__ == head), None)
    names, imports, place = [], [], quoted(name)
    if auto_class is not None:
        names.append(auto_class)
        lines = [f"model = {auto_class}.from_pretrained({place}, trust_remote_code=True)"]
    else:
        # A head that transformers has no Auto class for.
        reference = f"{flat_name(classes['AutoModel'].__module__)}.{head}"
        imports.append("from transformers.dynamic_module_utils import get_class_from_dynamic_module")
        lines = [
            f"model_class = get_class_from_dynamic_module({quoted(reference)}, {place})",
            f"model = model_class.from_pretrained({place})",
        ]
    if has_tokenizer(str(folder)):
        names.append("AutoTokenizer")
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained({place}, trust_remote_code=True)")
    if names:
        imports.insert(0, f"from transformers import {', '.join(names)}")
    return "\n".join([*imports, "", *lines])
