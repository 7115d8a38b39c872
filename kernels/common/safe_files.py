"""Files and folders of longmix's own, in places where something else may have been put under their names.

A name that longmix writes to may turn out to be a link to a file of somebody's, a pipe that nobody reads, a device.
Nothing here is followed, waited for or emptied: what is opened is a regular file, or an error says what it is. Files
that are read and may be anybody's are followed through links, but neither waited for nor read without end. A folder
whose contents are run or believed must be the user's alone, with every folder on the way to it.

Needs no library: the commands that must answer at once use it, too.
"""

import contextlib
import errno
import functools
import grp
import itertools
import os
import pwd
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_OWN_FILE, _NO_INPUT = "not a file of longmix's: move it away", "not a file"
_MOST_LINKS = 40  # on the way to a folder, as the system has it
_WRITABLE_BY_OTHERS = 0o022
_USER_MAP, _UNMAPPED_USER = Path("/proc/self/uid_map"), Path("/proc/sys/kernel/overflowuid")
_ALL_USERS = ["0", "0", "4294967295"]


class NotPrivate(OSError):
    """A file or folder that others than this user and root can change; `strerror` says which, why, and the remedy."""


# Files: opened, or refused with what they are. The text of a refusal follows the name of the file.


def open_regular(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """The descriptor of a regular file, opened with `flags`; no link is followed, nothing waited for or emptied.

    Args:
        flags: of os.open, with O_CREAT for a file that may be new; never O_TRUNC, which empties what it finds.
        folder: the descriptor of the folder that `path` is relative to.

    Raises:
        OSError: the file cannot be opened; or `strerror` says what stands there in its place.
    """
    assert not flags & os.O_TRUNC
    with contextlib.suppress(FileNotFoundError):
        # Before it is opened: opening alone makes some devices act.
        _refuse_irregular(path, os.stat(path, dir_fd=folder, follow_symlinks=False))
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        _refuse_irregular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_lock(path: str | Path) -> BinaryIO:
    """A file to lock, existing or new, which stays empty. Raises OSError, also for one that holds something."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    size = os.fstat(descriptor).st_size
    if size:
        os.close(descriptor)
        raise OSError(errno.EEXIST, f"it holds {size} bytes, so it is no lock of longmix's: move it away", str(path))
    return open(descriptor, "r+b", buffering=0)


def open_to_append(path: str | Path) -> BinaryIO:
    """A file to append to, existing or new, unbuffered. Raises OSError."""
    return open(_open_to_change(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def open_to_change(path: str | Path) -> BinaryIO:
    """An existing file to read and write, unbuffered. Raises OSError."""
    return open(_open_to_change(path, os.O_RDWR), "r+b", buffering=0)


def open_emptied(path: str | Path) -> BinaryIO:
    """A file to write anew, existing or new; emptied once it is known to be longmix's to empty. Raises OSError."""
    descriptor = _open_to_change(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    return open(descriptor, "wb")


def open_to_read(path: str | Path) -> BinaryIO:
    """An existing file to read. Raises OSError."""
    return open(open_regular(path, os.O_RDONLY), "rb")


def open_input(path: str | Path) -> BinaryIO:
    """A file of anybody's to read, through links as well. Raises OSError, also for what is none and might never end."""
    # Before it is opened: that alone would wait for a pipe's other end.
    _refuse_irregular(path, os.stat(path), _NO_INPUT)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_irregular(path, os.fstat(descriptor), _NO_INPUT)
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_input(path: str | Path, most: int) -> bytes:
    """The contents of a file of anybody's that has at most `most` bytes. Raises OSError, also for a larger one."""
    with open_input(path) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EEXIST, f"it has more than {most:,} bytes", str(path))
    return content


def write_over(path: Path, data: bytes, *, cut: bool = False) -> None:
    """Write `data` over what a file in a folder of longmix's holds, which need not be there; `cut`: and nothing else.

    Neither the file nor its folder may be a link.

    Raises:
        OSError: they are, or cannot be written.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        descriptor = _open_to_change(path.name, os.O_WRONLY | os.O_CREAT, folder)
    finally:
        os.close(folder)
    try:
        if cut:
            os.ftruncate(descriptor, 0)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def new_beside(path: Path, mode: int = 0o666) -> Path:
    """The path of a new empty file beside `path`, to be written and then renamed to it: `.NAME.PID.tmp`, or with a
    number where a file has that name. Raises OSError."""
    for number in itertools.count():
        temporary = path.with_name(f".{path.name}.{os.getpid()}{f'-{number}' if number else ''}.tmp")
        try:
            # With O_EXCL no link is followed either.
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        except FileExistsError:
            continue
        return temporary
    raise AssertionError("unreachable")


def _open_to_change(path: str | Path, flags: int, folder: int | None = None) -> int:
    descriptor = open_regular(path, flags, folder=folder)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EEXIST, "it has another name elsewhere (a hard link): move it away", str(path))
    return descriptor


def _refuse_irregular(path: str | Path, found: os.stat_result, advice: str = _NO_OWN_FILE) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise OSError(errno.EEXIST, f"it is {kind}, {advice}", str(path))


# Private folders: what lies in them is run, or believed. As strict as sshd is about a user's keys.


def private_folder(path: Path) -> Path:
    """`path`, made with mode 0700 where it is missing, if nobody but this user and root can change what lies there.

    Every folder on the way to it, through links as well, must be this user's or root's and writable by nobody else; one
    with the sticky bit, such as /tmp, may be. The last one must be this user's. A group that is the user's own, with
    the same name and no other members, counts as the user.

    Raises:
        NotPrivate: others can change it.
        OSError: it cannot be made.
    """
    here, rest, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    _refuse_shared(here, os.lstat(here), is_folder=True)
    while rest:
        name = rest.pop()
        if name == "..":
            here = here.parent
            continue
        step = here / name
        try:
            found = os.lstat(step)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.mkdir(step, 0o700)
            found = os.lstat(step)
        if stat.S_ISLNK(found.st_mode):
            _refuse_foreign(step, found)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(os.readlink(step))
            here = Path("/") if target.is_absolute() else here
            rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(step))
        _refuse_shared(step, found, is_folder=True)
        here = step
    found = os.lstat(here)
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        _refuse_foreign(here, found, may_be_roots=False)
        _refuse_shared(here, found)
    return path


def read_private(path: Path) -> bytes:
    """The contents of a file that nobody but this user and root can change, in a private folder.

    Raises:
        NotPrivate: others can change it.
        OSError: it is missing, cannot be read, or is no regular file.
    """
    with open_to_read(path) as file:
        found = os.fstat(file.fileno())
        _refuse_shared(path, found)
        return file.read()


def _refuse_foreign(path: Path, found: os.stat_result, may_be_roots: bool = True) -> None:
    if found.st_uid != os.geteuid() and not (may_be_roots and found.st_uid in _roots()):
        owner, user = _user(found.st_uid), _user(os.geteuid())
        raise NotPrivate(errno.EPERM, f"{path} belongs to {owner}, not to {user}: chown {user} {path}")


def _refuse_shared(path: Path, found: os.stat_result, is_folder: bool = False) -> None:
    _refuse_foreign(path, found)
    open_to = found.st_mode & _WRITABLE_BY_OTHERS
    if open_to & stat.S_IWGRP and _is_users_own(found.st_gid):
        open_to &= ~stat.S_IWGRP
    if open_to and not (is_folder and found.st_mode & stat.S_ISVTX):
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        raise NotPrivate(errno.EPERM, f"others can write to {path} ({mode}): chmod go-w {path}")


@functools.cache
def _roots() -> frozenset[int]:
    """Root; where a container without privileges maps only some users, also the number that stands for all others, by
    which the folders of the system's root appear there."""
    with contextlib.suppress(OSError, ValueError):
        if _USER_MAP.read_text().split() != _ALL_USERS:
            return frozenset({0, int(_UNMAPPED_USER.read_text())})
    return frozenset({0})


@functools.cache
def _is_users_own(group: int) -> bool:
    """Whether a group is the user's own, as many systems give one to every user, who then share nothing by it."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
