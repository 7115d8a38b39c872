"""What ends a command with one line: a user's mistake, or a fault of the machine; and other exceptions told as these.

Which of the two an error of the system is, is decided here alone. What is neither is a bug of ours: a traceback.
"""

import contextlib
import errno
import logging
import os
import shutil
import warnings
from collections.abc import Iterator

# The system refuses a name: another one would do.
_OF_NAMES = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.ENOTEMPTY, errno.EXDEV),
)
# The system refuses a call that makes no sense.
_OF_BUGS = (errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOSYS)
# torch's allocators, and what it says when a file that it writes takes no more.
_NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc")

_standard_warning = warnings.formatwarning


def printable(text: str) -> str:
    """`text` in one line, and with nothing that a terminal would obey: what files from outside hold may be in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """`printable`, line by line."""
    return "\n".join(map(printable, text.split("\n")))


class _PrintableRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return printable_lines(super().getMessage())


def _printable_warning(message: object, category: type, filename: str, number: int, line: str | None = None) -> str:
    return printable_lines(_standard_warning(message, category, filename, number, line))


def show_printable_logs() -> None:
    """Let what libraries log and warn of in this process hold nothing that a terminal would obey: they quote files."""
    logging.setLogRecordFactory(_PrintableRecord)
    warnings.formatwarning = _printable_warning


def reason_of(error: object) -> str:
    """The message of an exception in one line; the name of its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class UserError(ValueError):
    """A mistake in the user's input: what is wrong, where, which values are allowed, what to do next.

    The command line prints its text as one line and exits with code 2; it never shows a traceback.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class MachineFault(RuntimeError):
    """A fault of the machine, or of what it computes: a full disk, no memory, a lost rank, a loss that diverged.

    The command line prints its text as one line and exits with code 1; it never shows a traceback.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class Unfinished(Exception):
    """The work is whole as far as it went, and waits for another process's: the same command goes on later.

    The command line prints its text as one line and exits with code 75.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def refused(text: str, error: OSError, advice: str = "") -> UserError | MachineFault:
    """What to raise where the system refuses what `text` says: a mistake if another name would do, else a fault."""
    number, reason, name = _parts(error)
    kind = UserError if number in _OF_NAMES else MachineFault
    where = "" if name is None or name in text else f" ({name})"
    return kind(f"{text}: {reason}{where}{advice and f'; {advice}'}")


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within it an error of the system that names no file, as one of writing does not, names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def in_one_line(error: BaseException) -> UserError | MachineFault | None:
    """The mistake or fault that an exception means, with the file and the reason; None for a bug of ours.

    Libraries hide an error of the system behind their own: those that led to an exception are asked, too, though not
    for names: that a file is not there may be the usual case, in whose handling a bug shows.
    """
    if isinstance(error, UserError | MachineFault):
        return error
    first, *causes = _causes(error)
    found = [_in_one_line(first), *(fault for fault in map(_in_one_line, causes) if isinstance(fault, MachineFault))]
    return next((one for one in found if one is not None), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from or in the handling of."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _in_one_line(error: BaseException) -> UserError | MachineFault | None:
    if isinstance(error, UnicodeEncodeError) and "surrogate" in error.reason:
        # The name may stand in a longer text, such as JSON.
        before, after = error.object[: error.start], error.object[error.start :]
        name = before.rpartition('"')[2][-100:] + after.partition('"')[0][:100]
        return UserError(f"the name {name!r} is not valid UTF-8: rename the file or folder")
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return UserError("the name of a file or folder holds a zero byte: correct it")
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return MachineFault(f"the memory of this machine is exhausted ({reason_of(error)[:300]})")
    number, reason, name = _parts(error)
    if number is None or number in _OF_BUGS:
        return None
    if number in _OF_NAMES:
        # Without a name it is none that a user could correct.
        return None if name is None else UserError(f"{name}: {reason}")
    return MachineFault(reason if name is None else f"{name}: {reason}")


def _parts(error: BaseException) -> tuple[int | None, str, str | None]:
    """Number, reason and file of an error of the system; no number for one of another kind."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        # The files of a folder that could not be copied, each with the text of an error.
        _, target, text = error.args[0][0]
        number = _number_in(str(text), "[Errno ", "]")
        return number, str(text) if number is None else os.strerror(number), str(target)
    if not isinstance(error, OSError):
        # Libraries in Rust name the error in their message only.
        number = _number_in(str(error), "(os error ", ")")
        return number, "" if number is None else os.strerror(number), None
    # Of a copy it is the second file that is written.
    name = error.filename2 or error.filename
    name = os.fsdecode(name) if isinstance(name, str | bytes) else None
    reason = error.strerror or reason_of(error)
    if error.errno is not None and f"[errno {error.errno}]" in reason:
        reason = os.strerror(error.errno)  # pyarrow's, with its own words around it
    return error.errno, reason, name


def _is_out_of_memory(error: BaseException) -> bool:
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in _NO_MEMORY)


def _number_in(text: str, before: str, after: str) -> int | None:
    _, found, rest = text.partition(before)
    digits = rest.partition(after)[0]
    return int(digits) if found and digits.isdecimal() else None
