"""The files that DeepSpeed wants to save, noted and not written."""

import os
from pathlib import Path
from typing import Any

import torch


class Collector:
    """A checkpoint engine of DeepSpeed's kind that notes what belongs into which file, and writes nothing.

    DeepSpeed saves between barriers, so that a rank whose disk refuses would leave the others waiting. The files are
    written afterwards, and what became of them is agreed on.
    """

    name = "longmix"

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}

    def take(self, folder: Path) -> dict[str, Any]:
        """The contents saved since the last call, by the name of their file below `folder`."""
        files, self._files = self._files, {}
        return {os.path.relpath(path, folder): value for path, value in files.items()}

    def create(self, info: Any) -> None:
        self._files = {}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def save(self, state_dict: Any, path: str) -> None:
        self._files[path] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return torch.load(path, map_location=map_location, weights_only=True)

    def commit(self, info: Any) -> bool:
        return True

    def is_data_parallel_writer(self, rank: int) -> bool:
        return rank == 0

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        return True

    def cleanup(self) -> None:
        pass
