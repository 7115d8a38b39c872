"""The random generators that a model may draw from: torch's (CPU and device), NumPy's and Python's."""

import base64
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longmix.data_prep.errors import UserError
from longmix.data_prep.state_files import read_json

from ..processes.world import World


def file_name(rank: int) -> str:
    """The name of the file with a rank's state in a checkpoint."""
    return f"random-{rank:05d}.json"


def collect(world: World) -> dict[str, Any]:
    """{file name: this rank's state}, for a checkpoint."""
    name, keys, *rest = np.random.get_state()
    state = {
        "torch": _to_text(torch.get_rng_state()),
        "device": _to_text(torch.cuda.get_rng_state(world.device)) if world.device.type == "cuda" else None,
        "numpy": [name, keys.tolist(), *rest],
        "python": random.getstate(),
    }
    return {file_name(world.rank): state}


def restore(folder: Path, world: World) -> None:
    """Resume from the checkpoint in `folder`; a rank that had no part in it keeps what it was seeded with.

    Raises:
        UserError: the file holds no state of these generators.
    """
    path = folder / file_name(world.rank)
    if not path.exists():
        return
    try:
        state = read_json(path)
        torch.set_rng_state(_from_text(state["torch"]))
        if state["device"] is not None and world.device.type == "cuda":
            torch.cuda.set_rng_state(_from_text(state["device"]), world.device)
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.asarray(keys, dtype=np.uint32), *rest))
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        raise UserError(f"{path} holds no states of random generators: {error}") from None


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
