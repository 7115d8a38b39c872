"""Mistakes of a user: several of them told at once, and each in one line."""

import sys

from longmix.data_prep.errors import UserError


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


def tell(mistake: Exception) -> None:
    """Print what ends a command, as its last line of standard error."""
    print(f"longmix: error: {mistake}", file=sys.stderr, flush=True)
