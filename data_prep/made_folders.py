"""Folders that longmix makes as a whole, and what it may replace: only what it made itself, and nobody has changed.

Such a folder is written under a hidden name and renamed. It holds a marker, `.longmix.json`, with the size and SHA-256
of each of its files. An older one gives way only while every file in it is one of these, as it was written; one that an
earlier version made, without a marker, only if each file is known by its name and content. Nothing else is removed.
"""

import contextlib
import fcntl
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import MARKER, flush_to_disk, folder_lock, sha256_of_file, write_text
from longmix.data_prep.state_files import read_json

# The kinds of folders.
MODEL, DATASET, TEXT, TOKENIZER = "model", "data set", "text", "tokenizer"
_UNFINISHED = "unfinished folder"
_FIRST_MARKER = re.compile(rf"\.{re.escape(MARKER)}\.\d+(-\d+)?\.tmp")
# A look at files of at most so many bytes costs nothing: weights and shards are larger.
QUICK_BYTES = 1 << 20
# earlier(folder, names of its files): the first that earlier versions did not write; None if they wrote them all.
Earlier = Callable[[Path, list[str]], str | None]


def nothing_earlier(folder: Path, names: list[str]) -> str | None:
    """`Earlier` of folders that no version has made without a marker."""
    return min(names)


# -----------------------------------------------------------------------------
# Looking: whose a folder is.


def refuse_foreign(
    folder: Path, kind: str, earlier: Earlier = nothing_earlier, name: str | None = None, is_quick: bool = False
) -> list[str]:
    """Raise `UserError` unless a folder of this kind may appear at `folder`, or replace what is there. Changes nothing.

    Args:
        name: how the message calls the folder.
        is_quick: files larger than QUICK_BYTES are known by their size alone.

    Returns:
        The files that are there, all of them longmix's.
    """
    name = name or str(folder)
    names = files_below(refuse_unreplaceable(folder, name), name)
    if not names:
        return names
    listed = _marked(folder, kind, name)
    if listed is None:
        found = earlier(folder, names)
        why = "which longmix did not write there"
    else:
        found = next(
            (file for file in names if file != MARKER and not _is_as_listed(folder, file, listed, is_quick)), None
        )
        why = "which has changed since longmix wrote it" if found in listed else "which longmix did not write there"
    if found is not None:
        raise UserError(f"{name} holds {found}, {why}: move it away, or name another folder")
    return names


def refuse_unreplaceable(folder: Path, name: str | None = None) -> Path:
    """Raise `UserError` where no folder can appear under its name in one move; returns `folder`."""
    name = name or str(folder)
    if folder.is_symlink():
        raise UserError(f"{name} is a symbolic link, and none is replaced: name the folder that it stands for")
    if not os.path.lexists(folder):
        return folder
    if not folder.is_dir():
        raise UserError(f"{name} is no folder but a file: name another")
    place = folder.resolve()
    if os.path.ismount(place):
        raise UserError(f"{name} is a mount point, which nothing can replace: name a folder below it")
    if Path.cwd().is_relative_to(place) or place == Path("~").expanduser():
        what = "the home folder" if place == Path("~").expanduser() else "the current folder, or holds it"
        raise UserError(f"{name} is {what}, which is not replaced: name a folder of its own")
    return folder


def files_below(folder: Path, name: str | None = None) -> list[str]:
    """The files below a folder, relative to it, sorted; empty if there is none.

    Raises `UserError` for a link, anything else that is no plain file, or a folder that holds nothing.
    """
    found = []
    for place, folders, files in os.walk(folder, onerror=_raise):
        inner = Path(place)
        odd = [entry for entry in files if not stat.S_ISREG((inner / entry).lstat().st_mode)]
        odd += [entry for entry in folders if (inner / entry).is_symlink()]
        if odd:
            raise UserError(
                f"{name or folder} holds {(inner / min(odd)).relative_to(folder)}, which is a link or no plain file: "
                "move it away, or name another folder"
            )
        if not files and not folders and inner != folder:
            raise UserError(
                f"{name or folder} holds {inner.relative_to(folder)}, which longmix did not make: move it away, or "
                "name another folder"
            )
        found += [(inner / entry).relative_to(folder).as_posix() for entry in files]
    return sorted(found)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): nothing is replaced by longmix unread")


def _marked(folder: Path, kind: str, name: str) -> dict[str, tuple[int, str]] | None:
    """(bytes, SHA-256) of each file that a folder's marker lists; None without a marker."""
    path = folder / MARKER
    try:
        values = read_json(path)
        listed = {entry["file"]: (entry["bytes"], entry["sha256"]) for entry in values["files"]}
        found = values["kind"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} does not say what longmix wrote there: move {name} away, or name another folder"
        ) from None
    if found != kind:
        raise UserError(f"{name} holds a {found}, and this is a {kind}: move it away, or name another folder")
    return listed


def missing_files(folder: Path, kind: str) -> list[str]:
    """The files that a folder of this kind has lost since longmix made it, as in a copy that was cut short.

    A folder without a marker has lost none that is known of. Raises `UserError` for one that was never finished.
    """
    listed = _marked(folder, kind, str(folder)) or {}
    return sorted(file for file in listed if not (folder / file).is_file())


def _is_as_listed(folder: Path, file: str, listed: Mapping[str, tuple[int, str]], is_quick: bool) -> bool:
    if file not in listed:
        return False
    size, digest = listed[file]
    if (folder / file).stat().st_size != size:
        return False
    return (is_quick and size > QUICK_BYTES) or sha256_of_file(folder / file) == digest


# -----------------------------------------------------------------------------
# Making: under a hidden name, with a lock by which others see that it is being written.


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` for this process to write to, removed at the end unless it was renamed.

    A lock on it, which goes with the process, tells others that it is being written, its marker that it is longmix's.
    What has the marker and no lock was left by processes that were killed, and is removed first.
    """
    with contextlib.ExitStack() as stack:
        # Held while folders are looked through and made, so that none is seen between its making and its lock.
        with folder_lock(folder.parent, fcntl.LOCK_EX):
            for left in _siblings(folder, "new"):
                with folder_lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
                    if is_free:
                        _remove_unfinished(left)
            temporary = _make_beside(folder)
            stack.enter_context(folder_lock(temporary, fcntl.LOCK_EX))
            stack.callback(_remove_unfinished, temporary)
            _write_marker(temporary, _UNFINISHED, [])
        yield temporary


def _make_beside(folder: Path) -> Path:
    for count in itertools.count():
        # The number alone may be another machine's, or that of a container's every process.
        number = f"{os.getpid()}-{count}" if count else f"{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            temporary = folder.with_name(f".{folder.name}.{number}.new")
            temporary.mkdir()
            return temporary
    raise AssertionError


def _remove_unfinished(left: Path) -> None:
    """Remove a folder that was never finished, or was finished and not renamed; what is empty is nobody's."""
    with contextlib.suppress(OSError):
        left.rmdir()
    if _kind_of(left) == _UNFINISHED or _is_hardly_begun(left):
        _remove_whole(left)
    else:
        remove_made(left)


def _remove_whole(left: Path) -> None:
    """Remove a folder with all that it holds, the marker last: after a kill the rest is still known."""
    with contextlib.suppress(OSError):
        for path in sorted(left.iterdir(), key=lambda path: path.name == MARKER):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        left.rmdir()


def _is_hardly_begun(left: Path) -> bool:
    """Whether a folder holds nothing but its first marker, not yet renamed."""
    with contextlib.suppress(OSError):
        return all(_FIRST_MARKER.fullmatch(path.name) and path.is_file() for path in left.iterdir())
    return False


def put_in_place(
    new: Path,
    folder: Path,
    kind: str,
    earlier: Earlier = nothing_earlier,
    hashed: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Mark the finished folder `new`, of `new_folder`, and rename it to `folder`; what was there is removed afterwards.

    `hashed`: entries {"file", "bytes", "sha256"} of files whose hash is known.

    Raises:
        UserError: there is something that longmix did not write; `new` stays as it is.
    """
    _mark(new, kind, {entry["file"]: entry for entry in hashed})
    # Two at once take turns, and each finds a whole folder.
    with folder_lock(folder.parent, fcntl.LOCK_EX):
        swap(new, folder, refuse_foreign(folder, kind, earlier))


def swap(new: Path, folder: Path, names: Iterable[str]) -> None:
    """Rename `new` to `folder`; of what was there the files `names`, and no others, are removed afterwards."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    remove_made(old)
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    flush_to_disk(folder.parent)
    _remove(old, names)
    # With those of processes that were killed just here.
    for path in _siblings(folder, "old"):
        remove_made(path)


def mark_like(new: Path, old: Path, kind: str) -> None:
    """Mark `new`, a copy of the folder `old`: what somebody has added or changed there is not listed, so that it is
    known as theirs. Without a sound marker in `old`, `new` gets none."""
    try:
        listed = _marked(old, kind, str(old))
    except UserError:
        listed = None
    if listed is None:
        (new / MARKER).unlink()
        return
    _mark(new, kind, {}, [file for file in files_below(old) if not _is_as_listed(old, file, listed, is_quick=False)])


def _mark(folder: Path, kind: str, hashed: Mapping[str, Mapping[str, Any]], left_out: Iterable[str] = ()) -> None:
    """Write the marker, over that of an unfinished folder: from here on every file is known, but for some."""
    entries = []
    for file in files_below(folder):
        if file != MARKER and file not in left_out:
            path = folder / file
            known = {name: hashed[file][name] for name in ("bytes", "sha256")} if file in hashed else None
            entries.append({"file": file, **(known or {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)})})
    _write_marker(folder, kind, entries)


def _write_marker(folder: Path, kind: str, entries: list[dict[str, Any]]) -> None:
    values = {"kind": kind, "longmix": importlib.metadata.version("longmix"), "files": entries}
    # In ASCII: a user's file that was copied may have a name that is no UTF-8.
    write_text(folder / MARKER, json.dumps(values, indent=2) + "\n")


def _kind_of(folder: Path) -> str | None:
    """The kind that a folder's marker names; None if there is no sound one."""
    try:
        kind = read_json(folder / MARKER)["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kind if isinstance(kind, str) else None


# -----------------------------------------------------------------------------
# Removing: the files that are known to be longmix's, by name, and folders only when they are empty.


def remove_made(folder: Path, earlier: Earlier = nothing_earlier) -> None:
    """Remove a folder in which longmix wrote every file as it is; leave any other, and whatever cannot be removed."""
    with contextlib.suppress(OSError):
        folder.rmdir()
    with contextlib.suppress(UserError, OSError):
        _remove(folder, refuse_foreign(folder, _kind_of(folder) or "", earlier))


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Remove these files of a folder, the marker last: after a kill the rest is still known. Others stay."""
    for file in sorted(names, key=lambda file: file == MARKER):
        with contextlib.suppress(OSError):
            (folder / file).unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)


def _siblings(folder: Path, suffix: str) -> list[Path]:
    """Folders `.NAME.PROCESS.suffix` beside a folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.\d+(-\d+)?\.{suffix}")
    return [path for path in folder.parent.iterdir() if name.fullmatch(path.name) and not path.is_symlink()]
