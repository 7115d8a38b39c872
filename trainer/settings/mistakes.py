"""Mistakes of a user, several of them told at once; and lines on the console, which may refuse them."""

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

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


NOTHING_ASIDE: Callable[[], AbstractContextManager] = contextlib.nullcontext
# Takes what moves on the terminal, a bar, aside while a line is written.
aside = NOTHING_ASIDE


def say(text: str) -> None:
    """Print one line to standard error, which may be a file on a full disk: that ends no work."""
    with contextlib.suppress(OSError), aside():
        print(printable(text), file=sys.stderr, flush=True)


def say_loading(verb: str) -> None:
    """Say on a terminal what a command does in its first seconds, unless torch is loaded already."""
    if "torch" not in sys.modules and sys.stderr.isatty():
        say(f"longmix {verb}: loading torch")


def tell(error: Exception, command: str = "longmix") -> None:
    """Print what ends a command, as its last line of standard error."""
    say(f"{command}: error: {error}")
