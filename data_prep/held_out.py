"""Texts given as validation and test, and which other documents also stand in them: those must not be trained on."""

import hashlib
import re

TEST, VALIDATION = "test", "validation"
SAME_TEXT, SAME_TITLE = "same_text", "same_title"

_OTHER_CHARACTERS = re.compile(r"[\W_]+")


class HeldOut:
    """What the held-out documents are known by: their text and, under a heading ' = Title = ', their title.

    Of both only letters and digits count, in one case, since one text may be tokenised ("0 @.@ 7") and the other not
    ("0.7"). 16 bytes are kept of each, so memory grows with the number of held-out documents alone.
    """

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self.bytes = 0
        self.validation_in_test = 0
        self._texts: set[bytes] = set()
        self._titles: set[bytes] = set()

    def add(self, split: str, text: str, title: str | None, size: int) -> None:
        """Those of test come first. `title`: the document's first line if it is one; `size`: the document's bytes."""
        if split == VALIDATION and TEST in self.splits and self.find(text, title) is not None:
            self.validation_in_test += 1
        self.splits.add(split)
        self.bytes += size
        if title is not None:
            self._titles.add(_key(title))
        if not (body := _body(text, title)).isspace():
            self._texts.add(_key(body))

    def find(self, text: str, title: str | None) -> str | None:
        """SAME_TEXT or SAME_TITLE if a held-out document has it, else None."""
        if title is not None and _key(title) in self._titles:
            return SAME_TITLE
        return SAME_TEXT if _key(_body(text, title)) in self._texts else None


def _body(text: str, title: str | None) -> str:
    """The text below the title, never empty."""
    return text if title is None else text[len(title) :] + "\n"


def _key(text: str) -> bytes:
    letters = _OTHER_CHARACTERS.sub("", text.casefold()) or "".join(text.split())
    return hashlib.blake2b(letters.encode(), digest_size=16).digest()
