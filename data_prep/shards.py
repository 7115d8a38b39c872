"""A whole data set in one go: its folder appears with shards and manifest, or not at all."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import flush_to_disk
from longmix.data_prep.manifest import FILE_NAME, Manifest

LIST_INT32 = {"dtype": "int32", "shape": [None]}
SCALAR_INT64 = {"dtype": "int64", "shape": []}
SCALAR_FLOAT32 = {"dtype": "float32", "shape": []}

# Columns whose entries are a sample's tokens, or positions.
_COUNTED = ("input_ids", "input_ids_b", "values", "values_b")


def write_dataset(
    folder: str | Path,
    samples: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Mapping[str, Any]],
    **manifest_fields: Any,
) -> Manifest:
    """Write a whole data set and return its manifest. The folder appears complete, replacing an older data set.

    `manifest_fields` are `Manifest`'s (`split` and `split_rule` at least); samples, tokens, columns and shards are
    filled in. For data that one process writes in one go: GLUE, small sets, tests.
    Raises `UserError` if `folder` exists and holds something that is no data set.
    """
    from longmix.data_prep.shard_writer import ShardWriter  # here: a task's --help needs no pyarrow

    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE_NAME).is_file():
        raise UserError(f"{folder} already holds files that are no data set: choose another folder, or empty it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder for the data set")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _unfinished_folder(folder) as temporary:
        counted = _Counter(samples)
        with ShardWriter(temporary, columns) as writer:
            for sample in counted:
                writer.write(sample)
        manifest = Manifest(
            columns={name: dict(column) for name, column in columns.items()},
            samples=counted.samples,
            tokens=counted.tokens,
            shards=writer.entries,
            **manifest_fields,
        )
        manifest.save(temporary)
        replace_folder(temporary, folder)
    return manifest


@contextlib.contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` for this process to write to, removed at the end unless it was renamed.

    A lock on it, which goes with the process, tells others that it is being written. What has none was left by
    processes that were killed, and is removed first.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with contextlib.ExitStack() as stack:
        # Held while folders are looked through and made, so that none is seen between its making and its lock.
        with _locked(folder.parent, fcntl.LOCK_EX):
            for left in _siblings(folder, "new"):
                with _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
                    if is_free:
                        shutil.rmtree(left, ignore_errors=True)
            temporary.mkdir()
            stack.enter_context(_locked(temporary, fcntl.LOCK_EX))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        yield temporary


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[bool]:
    """A lock on a folder; yields False if another process has it, or the folder or its file system cannot be locked."""
    with contextlib.ExitStack() as stack:
        given = False
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a named pipe would be waited for
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, kind)
            given = True
        yield given


def _siblings(folder: Path, suffix: str) -> list[Path]:
    """Folders `.NAME.PROCESS.suffix` beside a folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.{suffix}")
    return [path for path in folder.parent.iterdir() if name.fullmatch(path.name)]


def replace_folder(new: Path, folder: Path) -> None:
    """Rename the finished folder `new` to `folder`; what was there is removed afterwards."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    flush_to_disk(folder.parent)
    # With those of processes that were killed just here.
    for path in _siblings(folder, "old"):
        shutil.rmtree(path, ignore_errors=True)


class _Counter:
    """Passes samples on and counts them and their tokens or, of real values, positions (None without any of these)."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self.source = samples
        self.samples = 0
        self.tokens: int | None = None

    def __iter__(self):
        for sample in self.source:
            self.samples += 1
            for name in _COUNTED:
                if name in sample:
                    self.tokens = (self.tokens or 0) + len(sample[name])
            yield sample
