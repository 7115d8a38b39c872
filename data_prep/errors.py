"""What ends a command with one line: a user's mistake, or a fault of the machine; and other exceptions told as these.

Which of the two an error of the system is, is decided here alone. What is neither is a bug of ours: a traceback.
"""

import errno
import logging
import os
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


def refused(text: str, error: OSError, advice: str = "") -> UserError | MachineFault:
    """What to raise where the system refuses what `text` says: a mistake if another name would do, else a fault."""
    kind = UserError if error.errno in _OF_NAMES else MachineFault
    name = "" if error.filename is None else os.fsdecode(error.filename)
    which = f"{name}: " if name not in text else ""
    return kind(f"{text}: {which}{error.strerror or reason_of(error)}{advice and f'; {advice}'}")


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
        return UserError(f"the name {error.object[:200]!r} is not valid UTF-8: rename the file or folder")
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return UserError("the name of a file or folder holds a zero byte: correct it")
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return MachineFault(f"the memory of this machine is exhausted ({reason_of(error)[:300]})")
    if isinstance(error, OSError):
        number, reason, name = error.errno, error.strerror, error.filename
    else:
        # Libraries in Rust name the error in their message only.
        number, reason, name = _number_in(str(error)), None, None
    if number is None or number in _OF_BUGS:
        return None
    name = os.fsdecode(name) if isinstance(name, str | bytes) else None
    if number in _OF_NAMES:
        # Without a name it is none that a user could correct.
        return None if name is None else UserError(f"{name}: {reason}")
    return MachineFault(f"{name}: {reason}" if name is not None else reason or os.strerror(number))


def _is_out_of_memory(error: BaseException) -> bool:
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return type(error) is RuntimeError and any(sign in str(error) for sign in _NO_MEMORY)


def _number_in(text: str) -> int | None:
    _, found, rest = text.partition("(os error ")
    digits = rest.partition(")")[0]
    return int(digits) if found and digits.isdecimal() else None
