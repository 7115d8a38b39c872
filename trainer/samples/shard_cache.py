"""A folder on this machine's disk with copies of remote shards: bounded, shared by processes, checked by hash.

A copy has its SHA-256 as its name, so that no data set is mistaken for another, and appears under it only when it is
whole. Who copies holds a lock on the unfinished file: others wait for it, and take over what a killed process has left.
A copy is hashed once after each start of a machine, and believed as long as it is the same file, unchanged (see
verified_copies.py). The copy used longest ago makes room. Nothing else in the folder is touched.
"""

import collections
import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import flush_to_disk, make_folder, sha256_of_folder
from longmix.data_prep.remote import RemoteFolder
from longmix.kernels.common.safe_files import open_lock, open_regular, open_to_read

from ..settings.sections import CacheSection
from . import verified_copies

logger = logging.getLogger(__name__)

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
            make_folder(self.folder)
            with self._locked():
                pass
        except OSError as error:
            raise refused(f"data.cache.dir {self.folder} cannot be used", error) from None

    def room(self) -> int:
        """Bytes that copies may take together: what they take now counts as theirs."""
        if self.max_bytes is not None:
            return self.max_bytes
        here = [entry for entry in os.scandir(self.folder) if _COPY.fullmatch(entry.name)]
        return self._room_on_disk(sum(entry.stat(follow_symlinks=False).st_size for entry in here))

    def _room_on_disk(self, copies: int) -> int:
        disk = shutil.disk_usage(self.folder)
        return copies + disk.free - disk.total // _SPARE_SHARE

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
            self._remove(self.folder / shard["sha256"])

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
            # Another process may have been faster: its copy is as good, if it is one.
            with contextlib.suppress(OSError):
                os.rename(copy, folder)
        if sha256_of_folder(folder) != sha256:
            raise OSError(errno.EEXIST, "it cannot be replaced by a copy of the tokenizer: move it away", str(folder))
        return folder

    def _copy_or_wait(self, remote: RemoteFolder, shard: dict[str, Any], part: Path, path: Path) -> None:
        with contextlib.ExitStack() as stack:
            with self._locked():
                # Finishing and giving up happen under this lock, too: nobody is found between two states.
                if os.path.lexists(path):
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
                # After the renaming, which changes its ctime.
                verified_copies.note(path, os.fstat(target.fileno()))
        except BaseException as error:
            with self._locked():
                part.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):
                raise UserError(
                    f"{remote.url}/{shard['file']} is missing, the manifest names it: copy the data set again"
                ) from None
            raise

    def _is_there(self, path: Path, size: int) -> bool:
        """Whether the copy is there, hashed by this process or an earlier one since the machine's start, and the same
        file since; it counts as used now."""
        if verified_copies.is_known(path, size):
            return True
        try:
            copy = open_to_read(path)
        except FileNotFoundError:
            return False
        except PermissionError:
            raise
        except OSError as error:
            wrong = error.strerror
        else:
            with copy:
                # Others wait, and find what this one has noted. Where only files open to write can be locked, as on
                # network file systems, each hashes for itself.
                with contextlib.suppress(OSError):
                    fcntl.flock(copy, fcntl.LOCK_EX)
                if verified_copies.is_known(path, size):
                    return True
                wrong = verified_copies.defect(copy, path.name, size)
                with self._locked():
                    if not _is_at(path, copy):
                        return False  # evicted meanwhile
                    if wrong is None:
                        verified_copies.note(path, os.fstat(copy.fileno()))
                        return True
        logger.warning("%s is not the copy that was made (%s): it is made anew", path, wrong)
        with self._locked():
            self._remove(path)
        return False

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        verified_copies.forget(path)

    def _make_room(self, size: int, part: Path, url: str) -> bool:
        """Remove unfinished copies of ended processes, then the copies used longest ago, until `size` bytes fit.

        False if copies that others are making leave too little room.

        Raises:
            UserError: they would never fit.
        """
        copies, records, others, on_disk = [], collections.defaultdict(list), 0, 0
        for entry in os.scandir(self.folder):
            if _COPY.fullmatch(entry.name):
                found = entry.stat(follow_symlinks=False)
                copies.append((found.st_mtime_ns, found.st_size, entry.path))
                on_disk += found.st_size
            elif record := verified_copies.RECORD.fullmatch(entry.name):
                records[record[1]].append(entry.stat(follow_symlinks=False).st_mtime_ns)
            elif _UNFINISHED.fullmatch(entry.name) and entry.name != part.name:
                reserved, written = _bytes_if_alive(entry.path)
                others += reserved
                on_disk += written
        limit, bound = self.max_bytes, "data.cache.max_bytes"
        if limit is None:
            limit, bound = self._room_on_disk(on_disk), "a tenth of its disk stays free"
        if size > limit:
            part.unlink()
            raise UserError(f"{url} has {size} bytes, more than {self.folder} may hold: {limit} ({bound})")
        used = others + sum(held for _, held, _ in copies)
        # Since it was made, if nobody has noted a use.
        copies = [(max(records.get(Path(path).name, [made])), held, path) for made, held, path in copies]
        for _, held, oldest in sorted(copies):
            if used + size <= limit:
                break
            self._remove(Path(oldest))
            used -= held
        return used + size <= limit

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open_lock(self.folder / verified_copies.LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


# Files and their locks, by which processes that share the folder see each other.


def _open(path: Path) -> BinaryIO:
    """An existing or new file to read and write; no link is followed."""
    return open(open_regular(path, os.O_RDWR | os.O_CREAT), "r+b")


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file is the one at `path` still."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bytes_if_alive(path: str) -> tuple[int, int]:
    """(reserved, on the disk) bytes of an unfinished copy; one that nobody holds is removed."""
    with open(open_regular(path, os.O_RDWR), "r+b") as file:
        if _try_lock(file):
            os.unlink(path)
            return 0, 0
        found = os.fstat(file.fileno())
        return found.st_size, min(found.st_size, 512 * found.st_blocks)
