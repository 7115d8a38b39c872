"""Files: written so that a kill at any moment leaves the old one or the new one, named by hash, and a folder's lock."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, naming, refused
from longmix.kernels.common.safe_files import new_beside, open_input, open_lock

LOCK = ".lock"
# The folder at the root of a file system of its own: an output may be a volume.
VOLUMES_OWN = "lost+found"
# Of the names of folders and files in bytes, on file systems; and of folders that files are written to: a checkpoint's
# names need some of the whole.
LONGEST_PART, LONGEST_FOLDER = 255, 3500
_SHOWN = 40
# In folders that longmix made as a whole: which files it wrote (made_folders.py).
MARKER = ".longmix.json"


def sha256_of_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open_input(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_input(path: str | Path) -> None:
    """Raise `UserError`, or `MachineFault`, unless a library can be given this file of anybody's to read."""
    try:
        open_input(path).close()
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None


def sha256_of_text(text: str) -> str:
    """Hexadecimal SHA-256 of a text as `write_text` writes it."""
    return hashlib.sha256(text.encode()).hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, also in the folders that links in it lead to, sorted.

    No folder is read twice: not by a link beside it, nor by one that leads back. Hidden folders, and what a file system
    keeps for itself, may be unreadable.

    Raises:
        OSError: another folder cannot be read.
    """
    root = os.path.realpath(folder)
    return sorted(_files_below(folder, root, {root}))


def _files_below(folder: Path, root: str, entered: set[str]) -> Iterator[Path]:
    try:
        items = list(folder.iterdir())
    except PermissionError:
        if folder.name.startswith(".") or folder.name == VOLUMES_OWN:
            return
        raise
    for item in items:
        if item.is_file():
            yield item
        elif item.is_dir():
            real = os.path.realpath(item)
            inside, outside = f"{real}/".startswith(f"{root}/"), f"{root}/".startswith(f"{real}/")
            if real not in entered and not (item.is_symlink() and (inside or outside)):
                entered.add(real)
                yield from _files_below(item, root, entered)


def sha256_of_folder(folder: str | Path) -> str:
    """Hexadecimal SHA-256 over the names and contents of all files below `folder`, in sorted order, but for MARKER."""
    folder = Path(folder)
    digest = hashlib.sha256()
    for path in (path for path in files_below(folder) if path != folder / MARKER):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_path(path: str | Path, *, sweep: bool = True) -> Iterator[Path]:
    """A temporary name beside `path` to write to; on success it is flushed to the disk and renamed to `path`.

    What killed processes have left under such a name is removed, unless `sweep` is false: that takes a look at every
    name in the folder, too much where one is written for each of a hundred thousand files.
    """
    path = Path(path)
    temporary = new_beside(path)
    try:
        with _held(temporary):
            with naming(path):
                yield temporary
                flush_to_disk(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_to_disk(path.parent)
    if sweep:
        _remove_left_behind(path)


@contextlib.contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Make a file, and lock it: so others see that it is being written, for the lock goes with the process."""
    while True:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks: nobody can lock it to remove it, either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(temporary), os.fstat(descriptor)):
                break
        os.close(descriptor)  # it was taken for a killed process's before it was locked
    try:
        yield
    finally:
        os.close(descriptor)


def _remove_left_behind(path: Path) -> None:
    """Remove temporary files of `path` that no process holds."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+(-\d+)?\.tmp")
    for left in filter(name.fullmatch, os.listdir(path.parent)):
        with contextlib.suppress(OSError):
            descriptor = os.open(path.with_name(left), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.with_name(left))
            finally:
                os.close(descriptor)


def write_text(path: str | Path, text: str, *, sweep: bool = True) -> None:
    """Write UTF-8 text with LF line ends under a temporary name, flush, rename; `sweep`: as `atomic_path` has it."""
    with atomic_path(path, sweep=sweep) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: str | Path, value: Any, *, sweep: bool = True) -> None:
    """Write `value` as indented JSON under a temporary name, flush, rename; `sweep`: as `atomic_path` has it."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", sweep=sweep)


def flush_to_disk(path: str | Path) -> None:
    """fsync a file, or a folder (so that a rename in it survives a power cut)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder that results are written to, and those above it, where they are missing; of any depth, as
    Path.mkdir cannot. Raises OSError, also for a path that leaves too few bytes to the files below it.
    """
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise OSError(errno.ENAMETOOLONG, f"it has more than {LONGEST_FOLDER} bytes", str(folder)[:_SHOWN] + "...")
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        one.mkdir(exist_ok=True)


@contextlib.contextmanager
def folder_lock(folder: Path, kind: int) -> Iterator[bool]:
    """A lock on a folder; yields False if another process has it, or the folder or its file system cannot be locked."""
    with contextlib.ExitStack() as stack:
        given = False
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a named pipe would be waited for
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, kind)
            given = True
        yield given


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` and hold it for this process alone; the lock goes with the process. Left empty, it is removed.

    Raises `UserError` if the folder cannot be written, or if another process holds it.
    """
    path = folder / LOCK
    try:
        make_folder(folder)
    except OSError as error:
        raise refused(f"{folder} cannot be used", error) from None
    try:
        stream = open_lock(path)
    except OSError as error:
        raise refused(f"{folder} cannot be used: {path}", error) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another longmix is at work in {folder}: wait for it, or choose another") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
