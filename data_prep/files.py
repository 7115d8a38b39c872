"""Files: written so that a kill at any moment leaves the old one or the new one, named by hash, and a folder's lock."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError

LOCK = ".lock"


def sha256_of_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_folder(folder: str | Path) -> str:
    """Hexadecimal SHA-256 over the names and contents of all files below `folder`, in sorted order."""
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; on success it is flushed to the disk and renamed to `path`."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text with LF line ends under a temporary name, flush, rename."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON under a temporary name, flush, rename."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def flush_to_disk(path: str | Path) -> None:
    """fsync a file, or a folder (so that a rename in it survives a power cut)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` and hold it for this process alone; the lock goes with the process. Left empty, it is removed.

    Raises `UserError` if the folder cannot be written, or if another process holds it.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = open(path, "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"--output {folder} cannot be used: {error.strerror}") from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another longmix prepare is at work in {folder}: wait for it, or choose another") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
