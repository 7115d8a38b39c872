"""Files on remote storage, by any URL that fsspec knows: read with patience, copied with their hashes."""

import errno
import hashlib
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from longmix.data_prep.errors import UserError, reason_of, refused

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

# Seconds between attempts: a store that is away for two minutes ends no run.
DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
# At the start somebody waits for the answer, and the URL may be mistyped.
FIRST_DELAYS = (0.5, 1.0)
_CHUNK = 2**22
LARGEST_MANIFEST = 2**30
# What no further attempt mends.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Apart from the generators of a run, which must stand where they stood: only how long to wait is drawn.
_jitter = random.Random()
_sleep = time.sleep


class DamagedCopy(OSError):
    """A file that arrived with another size or hash than the manifest's."""


def is_remote(path: str | Path) -> bool:
    """Whether a data set's path is a URL."""
    return isinstance(path, str) and "://" in path


class RemoteFolder:
    """A folder at a URL.

    Raises:
        UserError: at construction, for a URL that fsspec cannot use, or one with a password.
    """

    def __init__(self, url: str):
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        try:
            for part in url.split("::"):
                password = urlsplit(part).password
                if password is not None:
                    raise UserError(
                        f"{part.replace(password, '...')} holds a password, which would be written to the run folder: "
                        "leave it to the environment, or to the storage's own configuration file"
                    )
            self._files, self._root = url_to_fs(self.url)
        except UserError:
            raise
        except Exception as error:  # every storage library has exceptions of its own
            raise UserError(f"{self.url} cannot be used: {reason_of(error)}") from None

    def read(self, name: str, delays: tuple[float, ...] = FIRST_DELAYS) -> bytes:
        """The contents of a small file.

        Raises:
            FileNotFoundError: there is none.
            UserError: it cannot be read, or is beyond a manifest's size.
        """
        parts: list[bytes] = []

        def attempt() -> bytes:
            parts.clear()
            self._copy(name, parts.append, LARGEST_MANIFEST)
            return b"".join(parts)

        return self._patiently(name, attempt, delays)

    def names(self, folder: str) -> list[str]:
        """The names of what lies in a folder of this folder. Raises UserError if it cannot be listed."""

        def attempt() -> list[str]:
            paths = self._files.ls(self._place(folder), detail=False)
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

        try:
            return self._patiently(folder, attempt, FIRST_DELAYS)
        except FileNotFoundError:
            raise UserError(f"{self.url}/{folder} does not exist: copy the data set again") from None

    def download(self, name: str, target: BinaryIO, size: int, sha256: str) -> None:
        """Copy a file into `target`, from its beginning; it must have this size and hash.

        Raises:
            FileNotFoundError: there is none.
            UserError: it cannot be read, or is another file, after several attempts; or the disk is full.
        """

        def attempt() -> None:
            target.seek(0)
            digest = hashlib.sha256()

            def take(chunk: bytes) -> None:
                digest.update(chunk)
                target.write(chunk)

            copied = self._copy(name, take, size)
            if copied < size:
                raise DamagedCopy(f"it has {copied} bytes, the manifest says {size}")
            if digest.hexdigest() != sha256:
                raise DamagedCopy("its SHA-256 is not the manifest's")

        self._patiently(name, attempt, DELAYS)

    def _place(self, name: str) -> str:
        """Where a file of this folder, or of a neighbour (`../NAME`), lies: not every storage resolves ".."."""
        if name.startswith("../"):
            return f"{self._root.rpartition('/')[0]}/{name.removeprefix('../')}"
        return f"{self._root}/{name}"

    def _copy(self, name: str, take: Callable[[bytes], Any], most: int) -> int:
        copied = 0
        with self._files.open(self._place(name), "rb") as source:
            while chunk := source.read(_CHUNK):
                copied += len(chunk)
                if copied > most:
                    # No file of a store may fill a disk.
                    raise DamagedCopy(f"it has more than {most} bytes")
                take(chunk)
        return copied

    def _patiently(self, name: str, attempt: Callable[[], Result], delays: tuple[float, ...]) -> Result:
        for delay in (*delays, None):
            try:
                return attempt()
            except FileNotFoundError:
                raise
            except Exception as error:  # every storage library has exceptions of its own
                reason = reason_of(error)
                if isinstance(error, OSError) and error.errno in _DISK_FULL:
                    raise refused(f"no room for a copy of {self.url}/{name}", error) from None
                if delay is None or isinstance(error, _FINAL):
                    attempts = f" after {len(delays) + 1} attempts" if delay is None else ""
                    raise UserError(f"{self.url}/{name} cannot be read{attempts}: {reason}") from None
                # Nodes that failed together do not come back together.
                delay *= 1 + _jitter.random() / 2
                logger.warning("%s/%s: %s; trying again in %.1f s", self.url, name, reason, delay)
                _sleep(delay)
                self._files.invalidate_cache()
        raise AssertionError("unreachable")
