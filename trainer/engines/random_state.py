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

# All ranks' states in their order; checkpoints of earlier versions have a file for each rank.
FILE = "random.json"


def earlier_file(rank: int) -> str:
    """The name of the file with a rank's state in a checkpoint of an earlier version."""
    return f"random-{rank:05d}.json"


def collect(world: World) -> dict[str, Any]:
    """{file name: all ranks' states} on rank 0, for a checkpoint; an empty map elsewhere. Every rank must call it."""
    name, keys, *rest = np.random.get_state()
    state = {
        "torch": _to_text(torch.get_rng_state()),
        "device": _to_text(torch.cuda.get_rng_state(world.device)) if world.device.type == "cuda" else None,
        "numpy": [name, keys.tolist(), *rest],
        "python": random.getstate(),
    }
    states = world.gather(state)
    return {FILE: states} if world.is_first else {}


def restore(folder: Path, world: World) -> None:
    """Resume from the checkpoint in `folder`; a rank that had no part in it keeps what it was seeded with.

    Raises:
        UserError: the file holds no state of these generators.
    """
    path = folder / FILE
    if not path.exists():
        path = folder / earlier_file(world.rank)
        if not path.exists():
            return
    try:
        state = read_json(path)
        if path.name == FILE:
            if not isinstance(state, list) or not state:
                raise ValueError("it must be a list with a state of each rank")
            if world.rank >= len(state):
                return
            state = state[world.rank]
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
