"""The files of a checkpoint: copied to host memory, written, flushed, read again."""

import contextlib
import copy
import errno
import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.files import flush_to_disk, sha256_of_file

from ..engines import state_files
from ..processes.shared_files import require_seen


def copy_to_host(value: Any) -> Any:
    """A copy in host memory that the next step does not change; tensors that share their memory share it still.

    That of a GPU's tensors is pinned, so that all are on their way at once; torch keeps such memory for the next time.
    """
    copied = _copy(value, {})
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return copied


def _copy(value: Any, copies: dict[tuple, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), type(value))
        if place not in copies:
            there = torch.empty_like(value.detach(), device="cpu", pin_memory=value.is_cuda)
            copied = there.copy_(value.detach(), non_blocking=True).requires_grad_(value.requires_grad)
            is_parameter = isinstance(value, torch.nn.Parameter)
            copies[place] = torch.nn.Parameter(copied, value.requires_grad) if is_parameter else copied
        return copies[place]
    if type(value) in (dict, OrderedDict):
        made = copy.copy(value)  # with what hangs on it: the versions of a state_dict's modules
        for key, item in value.items():
            made[key] = _copy(item, copies)
        return made
    if type(value) in (list, tuple):
        return type(value)(_copy(item, copies) for item in value)
    return copy.deepcopy(value)


class HashedFile:
    """A new file to write to, in order.

    Attributes:
        bytes, sha256: of what was handed to it, whatever the disk has made of it.
        refusal: the first error of the system; torch hides it behind one of its own.
    """

    def __init__(self, path: Path):
        self.bytes, self.refusal = 0, None
        self._digest = hashlib.sha256()
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: Any) -> int:
        if self.refusal is not None:
            raise self.refusal  # a file that lacks a piece is not continued
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self.bytes += len(view)
        rest = view
        while rest:
            with self._noting():
                rest = rest[self._file.write(rest) :]
        return len(view)

    def flush(self) -> None:
        """Do nothing, as nothing is held back; torch calls it."""

    def close(self) -> None:
        """Flush to the disk, unless it has refused, and close."""
        with self._file, self._noting():
            if self.refusal is None:
                os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.refusal = self.refusal or error
            raise


def write(folder: Path, name: str, value: Any) -> dict[str, Any]:
    """Save `value` as folder/name, flush it, and read it again; its entry of the manifest.

    Raises:
        OSError: the disk refuses, or gives back something else.
    """
    path = folder / name
    require_seen(folder)
    if path.parent != folder:
        with contextlib.suppress(FileExistsError):  # another rank was faster
            path.parent.mkdir()
        require_seen(path.parent)
    with contextlib.closing(HashedFile(path)) as file:
        try:
            if name.endswith(".json"):
                file.write(json.dumps(value).encode())
            elif name.endswith(".safetensors"):
                file.write(state_files.to_bytes(value))
            else:
                torch.save(value, file)
        except Exception:
            if file.refusal is not None:
                raise file.refusal from None
            raise
    if _read_again(path) != (file.bytes, file.sha256):
        raise OSError(errno.EIO, "what is read back differs from what was written", str(path))
    return {"file": name, "bytes": file.bytes, "sha256": file.sha256}


def entries(folder: Path, root: Path) -> list[dict[str, Any]]:
    """Flush all files below `folder`, whatever wrote them; their entries of the manifest at `root`."""
    return [entry(path, root) for path in sorted(path for path in folder.rglob("*") if path.is_file())]


def entry(path: Path, root: Path) -> dict[str, Any]:
    """Flush a file; its entry of the manifest at `root`."""
    flush_to_disk(path)
    size, digest = _read_again(path)
    return {"file": path.relative_to(root).as_posix(), "bytes": size, "sha256": digest}


def _read_again(path: Path) -> tuple[int, str]:
    """Size and hash of a flushed file, from the disk where the system can be asked to forget it."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return path.stat().st_size, sha256_of_file(path)


def reason_of_refusal(error: BaseException) -> str | None:
    """Why the disk refused; None for an error of another kind. Libraries in Rust name it in their message only."""
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return what if error.filename is None else f"{what} ({error.filename})"
    number = re.search(r"\(os error (\d+)\)", str(error))
    return None if number is None else os.strerror(int(number[1]))
