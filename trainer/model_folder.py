"""Whether a model folder is whole, as far as that shows without building the model."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from longmix.data_prep.errors import UserError

CONFIGURATION = "config.json"
# In the order in which transformers looks for them; large models have an index and several files in place of one.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json")


def check_model_folder(folder: Path) -> None:
    """Raise UserError, naming the file, unless the configuration, the weights and a tokenizer's JSON can be read."""
    if "model_type" not in _read(folder / CONFIGURATION):
        raise UserError(f"{folder / CONFIGURATION} is no model's: model_type is missing")
    for name in _TOKENIZER:
        if (folder / name).is_file():
            _read(folder / name)
    for path in _weight_files(folder):
        if not path.is_file():
            raise UserError(f"{path} is missing: copy the folder again")
        if is_damaged(path):
            raise UserError(f"{path} is damaged or was cut short: copy it again")


def is_damaged(path: Path) -> bool:
    """Whether a file of weights cannot be opened, as one that was cut short. The weights are not read."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                pass
        else:
            torch.load(path, map_location="meta", weights_only=True)
    except Exception:  # torch stumbles over damaged files in many ways
        return True
    return False


def _weight_files(folder: Path) -> list[Path]:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            weights = _read(index).get("weight_map")
            if not isinstance(weights, dict) or not weights:
                raise UserError(f"{index} is damaged: it names no weights")
            return [folder / str(file) for file in sorted(set(weights.values()), key=str)]
    raise UserError(f"{folder} holds no weights: {' or '.join(_WEIGHTS)} is missing")


def _read(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged, no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return values
