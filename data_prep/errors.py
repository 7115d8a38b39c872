"""Mistakes that a user can mend: their exception, and other exceptions told in one line."""


def printable(text: str) -> str:
    """`text` in one line, and with nothing that a terminal would obey: what files from outside hold may be in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def reason_of(error: object) -> str:
    """The message of an exception in one line; the name of its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class UserError(ValueError):
    """A mistake in the user's input: what is wrong, where, which values are allowed, what to do next.

    The command line prints its text as one line and exits with code 2; it never shows a traceback.
    """

    def __str__(self) -> str:
        return printable(super().__str__())
