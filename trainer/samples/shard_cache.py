"""A folder on this machine's disk with copies of remote shards: bounded, shared by processes, checked by hash.

A copy has its SHA-256 as its name, so that no data set is mistaken for another, and appears under it only when it is
whole. Who copies holds a lock on the unfinished file: others wait for it, and take over what a killed process has left.
The copy used longest ago makes room. Nothing else in the folder is touched.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import flush_to_disk, sha256_of_folder
from longmix.data_prep.remote import RemoteFolder

from ..settings.sections import CacheSection

_LOCK = ".lock"
_COPY = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.part")
_TOKENIZERS = "tokenizers"
_FILE_NAME = re.compile(r"\w[\w.+=-]*")
# The share of the disk that stays free without data.cache.max_bytes, as 1 / this.
_SPARE_SHARE = 10
_POLL_SECONDS = 0.2


class ShardCache:
    """Copies of remote files in a folder, of at most `max_bytes` together (None: a tenth of the disk stays free).

    Args:
        section: data.cache of a run file; its `dir` is ~/.cache/longmix by default.

    Raises:
        UserError: the folder cannot be used.
    """

    def __init__(self, section: CacheSection):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = Path(home) / "longmix" if section.dir is None else Path(section.dir)
        self.max_bytes = section.max_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise refused(f"data.cache.dir {self.folder} cannot be used", error) from None

    def fetch(self, remote: RemoteFolder, shard: dict[str, Any]) -> Path:
        """The copy of a shard (an entry of the manifest), made now if there is none.

        Another process may evict it at any time: who finds it gone fetches it again.

        Raises:
            UserError: the shard is missing, cannot be read or is another file than the manifest says; or there is no
                room for it.
        """
        path = self.folder / shard["sha256"]
        part = self.folder / f".{shard['sha256']}.part"
        try:
            while not self._is_there(path, shard["bytes"]):
                self._copy_or_wait(remote, shard, part, path)
        except OSError as error:
            raise refused(f"data.cache.dir {self.folder} cannot be used", error) from None
        return path

    def drop(self, shard: dict[str, Any]) -> None:
        """Forget a copy that turned out to be damaged."""
        with self._locked():
            (self.folder / shard["sha256"]).unlink(missing_ok=True)

    def tokenizer(self, remote: RemoteFolder, path: str, sha256: str) -> Path:
        """A copy of the tokenizer folder at `path` of a remote data set, with the hash that the manifest gives.

        Raises:
            UserError: it cannot be read, or is another one.
        """
        try:
            return self._tokenizer(remote, path, sha256)
        except OSError as error:
            raise refused(f"data.cache.dir {self.folder} cannot be used", error) from None

    def _tokenizer(self, remote: RemoteFolder, path: str, sha256: str) -> Path:
        folder = self.folder / _TOKENIZERS / sha256
        if folder.is_dir() and sha256_of_folder(folder) == sha256:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=folder.parent) as temporary:
            copy = Path(temporary) / "tokenizer"
            copy.mkdir()
            for name in filter(_FILE_NAME.fullmatch, remote.names(path)):
                (copy / name).write_bytes(remote.read(f"{path}/{name}"))
                flush_to_disk(copy / name)
            if sha256_of_folder(copy) != sha256:
                raise UserError(
                    f"{remote.url}/{path} is not the tokenizer that {remote.url} was prepared with: copy it again"
                )
            # Another process may have been faster: its copy is as good.
            with contextlib.suppress(OSError):
                os.rename(copy, folder)
        return folder

    def _copy_or_wait(self, remote: RemoteFolder, shard: dict[str, Any], part: Path, path: Path) -> None:
        with contextlib.ExitStack() as stack:
            with self._locked():
                # Finishing and giving up happen under this lock, too: nobody is found between two states.
                if path.exists():
                    return
                target = stack.enter_context(_open(part))
                is_mine = _try_lock(target)
                has_room = is_mine and self._make_room(shard["bytes"], part, f"{remote.url}/{shard['file']}")
                if has_room:
                    # The bytes count from now on.
                    target.truncate(0)
                    target.truncate(shard["bytes"])
                elif is_mine:
                    part.unlink()
            if has_room:
                self._copy(remote, shard, target, part, path)
            elif is_mine:
                time.sleep(_POLL_SECONDS)
            else:
                fcntl.flock(target, fcntl.LOCK_SH)

    def _copy(self, remote: RemoteFolder, shard: dict[str, Any], target: BinaryIO, part: Path, path: Path) -> None:
        try:
            remote.download(shard["file"], target, shard["bytes"], shard["sha256"])
            target.flush()
            os.fsync(target.fileno())
            with self._locked():
                os.rename(part, path)
        except BaseException as error:
            with self._locked():
                part.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):
                raise UserError(
                    f"{remote.url}/{shard['file']} is missing, the manifest names it: copy the data set again"
                ) from None
            raise

    def _is_there(self, path: Path, size: int) -> bool:
        """Whether a whole copy is there; it counts as used now."""
        try:
            self._mark_used(path)
            if path.stat().st_size == size:
                return True
        except FileNotFoundError:
            return False
        with self._locked():
            path.unlink(missing_ok=True)
        return False

    def _mark_used(self, path: Path) -> None:
        """Date a copy behind all that were used before, which a clock that was set back would not."""
        last = (self.folder / _LOCK).stat().st_mtime_ns
        now = max(time.time_ns(), last + 1)
        try:
            for one in (path, self.folder / _LOCK):
                os.utime(one, ns=(now, now))
        except PermissionError:
            os.utime(path)  # of another user's copies the system sets no other time than its own

    def _make_room(self, size: int, part: Path, url: str) -> bool:
        """Remove unfinished copies of ended processes, then the copies used longest ago, until `size` bytes fit.

        False if copies that others are making leave too little room.

        Raises:
            UserError: they would never fit.
        """
        copies, others, on_disk = [], 0, 0
        for entry in os.scandir(self.folder):
            if _COPY.fullmatch(entry.name):
                found = entry.stat()
                copies.append((found.st_mtime_ns, found.st_size, entry.path))
                on_disk += found.st_size
            elif _UNFINISHED.fullmatch(entry.name) and entry.name != part.name:
                reserved, written = _bytes_if_alive(entry.path)
                others += reserved
                on_disk += written
        limit, bound = self.max_bytes, "data.cache.max_bytes"
        if limit is None:
            disk = shutil.disk_usage(self.folder)
            limit, bound = on_disk + disk.free - disk.total // _SPARE_SHARE, "a tenth of its disk stays free"
        if size > limit:
            part.unlink()
            raise UserError(f"{url} has {size} bytes, more than {self.folder} may hold: {limit} ({bound})")
        used = others + sum(held for _, held, _ in copies)
        for _, held, oldest in sorted(copies):
            if used + size <= limit:
                break
            os.unlink(oldest)
            used -= held
        return used + size <= limit

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _open(self.folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


# Files and their locks, by which processes that share the folder see each other.


def _open(path: Path) -> BinaryIO:
    """An existing or new file to read and write; no link is followed."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bytes_if_alive(path: str) -> tuple[int, int]:
    """(reserved, on the disk) bytes of an unfinished copy; one that nobody holds is removed."""
    with open(path, "r+b") as file:
        if _try_lock(file):
            os.unlink(path)
            return 0, 0
        found = os.fstat(file.fileno())
        return found.st_size, min(found.st_size, 512 * found.st_blocks)
