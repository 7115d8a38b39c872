"""What is known of the copies in a shard cache: which were hashed since this machine's start, and when each was used.

Beside the copy `SHA256` lies `.SHA256.USER.verified`, one for each user of the folder. It holds, for every machine that
shares the folder, known by the identity of its last start, what the file system said of the copy when its hash was
right: another file of that name, or a byte written into it, has another inode, mtime or ctime, and ctime is nobody's to
set. A record counts only if it is its user's own file, so that others who can write in the folder cannot forge one.
The time of a record is when its user last used the copy, which itself stays untouched.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import BinaryIO

from longmix.kernels.common.safe_files import new_beside, read_private

# The lock of the folder, whose time is that of the last use of any copy.
LOCK = ".lock"
RECORD = re.compile(r"\.([0-9a-f]{64})\.\d+\.verified")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Machines that share a folder; those that noted something longest ago give way.
_MOST_MACHINES = 256


def is_known(path: Path, size: int) -> bool:
    """Whether the file at `path` is the one that `note` was told of since this machine's start, and unchanged; if so,
    it counts as used now."""
    try:
        found = os.lstat(path)
        if found.st_size != size or _noted(path).get(_machine()) != _identity(found):
            return False
        _mark_used(path)
    except FileNotFoundError:
        # The copy was evicted; or the record with it, by another process, just now.
        return False
    return True


def note(path: Path, found: os.stat_result) -> None:
    """Note that the copy at `path` has the right hash; to be called by one process at a time. Where the disk refuses,
    the next use hashes it again."""
    noted = _noted(path)
    noted.pop(_machine(), None)
    noted[_machine()] = _identity(found)
    kept = dict(list(noted.items())[-_MOST_MACHINES:])
    with contextlib.suppress(OSError):
        temporary = new_beside(_record(path), 0o600)
        try:
            temporary.write_text(json.dumps(kept))
            os.replace(temporary, _record(path))
            _mark_used(path)
        finally:
            temporary.unlink(missing_ok=True)


def defect(copy: BinaryIO, sha256: str, size: int) -> str | None:
    """Why an open file is not the one with this hash and size; None if it is. Reads all of it."""
    held = os.fstat(copy.fileno()).st_size
    if held != size:
        return f"it has {held} bytes, the manifest says {size}"
    copy.seek(0)
    return None if hashlib.file_digest(copy, "sha256").hexdigest() == sha256 else "its SHA-256 is not the manifest's"


def forget(path: Path) -> None:
    """Remove what is noted of a copy that is removed."""
    for record in path.parent.glob(f"*{path.name}.*.verified*"):  # with what a killed process was writing
        with contextlib.suppress(FileNotFoundError):
            os.unlink(record)


def _mark_used(path: Path) -> None:
    """Date a copy's record behind all uses before, which a clock that was set back would not. Raises OSError."""
    lock = path.with_name(LOCK)
    now = max(time.time_ns(), lock.stat().st_mtime_ns + 1)
    os.utime(_record(path), ns=(now, now))
    with contextlib.suppress(PermissionError):  # another user's
        os.utime(lock, ns=(now, now))


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.geteuid()}.verified")


def _noted(path: Path) -> dict[str, list[int]]:
    """What is noted of a copy, for each machine; nothing where the record is missing, damaged or not its user's own."""
    try:
        values = json.loads(read_private(_record(path)))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _identity(found: os.stat_result) -> list[int]:
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@functools.cache
def _machine() -> str:
    """The identity of this machine's last start; of this process where the system has none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return f"process {os.urandom(16).hex()}"
