"""Mistakes of a user, several of them told at once; and lines on the console, which may refuse them."""

import contextlib
import sys

from longmix.data_prep.errors import UserError, printable


class Mistakes:
    """A context that notes a user's mistake and lets the checks after it go on; `tell` raises them as one."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, UserError):
            self.texts.append(str(error))
        return isinstance(error, UserError)

    def tell(self) -> None:
        if self.texts:
            raise UserError("; ".join(self.texts))


def say(text: str, start: str = "", end: str = "\n") -> None:
    """Print one line to standard error, which may be a file on a full disk: that ends no work."""
    with contextlib.suppress(OSError):
        print(start + printable(text), end=end, file=sys.stderr, flush=True)


def tell(error: Exception, command: str = "longmix") -> None:
    """Print what ends a command, as its last line of standard error."""
    say(f"{command}: error: {error}")
