"""The state of an engine of ours as safetensors and JSON: nested maps and lists of tensors and plain values."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from longmix.data_prep.state_files import read_json

TENSORS, PLAIN = "engine.safetensors", "engine.json"


def as_files(state: Any) -> dict[str, Any]:
    """The map {file name: contents} of a state; nothing is copied. Tensors that are one stay one (tied weights)."""
    tensors: dict[str, torch.Tensor] = {}
    names: dict[tuple, str] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            name = names.setdefault(place, path) if value.numel() else path
            tensors[name] = value.detach()
            return {"tensor": name}
        if isinstance(value, dict):
            # A list of pairs, for JSON's keys are texts alone.
            return {"map": [[key, plain(item, f"{path}.{key}")] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return [plain(item, f"{path}.{index}") for index, item in enumerate(value)]
        return value

    written = plain(state, "state")
    return {TENSORS: tensors, PLAIN: written}


def to_bytes(tensors: dict[str, torch.Tensor]) -> bytes:
    """A safetensors file."""
    return safetensors.torch.save({name: _alone(value) for name, value in tensors.items()})


def read(folder: Path) -> Any:
    """The state whose files lie in `folder`; tuples come back as lists, and every tensor on the CPU."""
    tensors = safetensors.torch.load_file(folder / TENSORS)

    def joined(value: Any) -> Any:
        if isinstance(value, list):
            return [joined(item) for item in value]
        if isinstance(value, dict):
            return tensors[value["tensor"]] if "tensor" in value else {key: joined(item) for key, item in value["map"]}
        return value

    return joined(read_json(folder / PLAIN, allows_nan=True))


def _alone(value: torch.Tensor) -> torch.Tensor:
    """A tensor as safetensors takes it: contiguous, on the CPU, and not a part of something larger."""
    value = value.cpu().contiguous()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
