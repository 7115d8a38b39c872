"""The one exception for mistakes that a user can mend."""


class UserError(ValueError):
    """A mistake in the user's input: what is wrong, where, which values are allowed, what to do next.

    The command line prints its text as one line and exits with code 2; it never shows a traceback. What files from
    outside have put into the text makes no second line, and nothing that a terminal would obey.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
