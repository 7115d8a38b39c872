"""Texts given as validation and test, and which other documents also stand in them: those must not be trained on."""

import hashlib
import re

TEST, VALIDATION = "test", "validation"
SAME_TEXT, SAME_TITLE = "same_text", "same_title"

_OTHER_CHARACTERS = re.compile(r"[\W_]+")


class HeldOut:
    """The marks of the held-out documents: their text and, under a heading ' = Title = ', their title.

    Of both only letters and digits count, in one case, since one text may be tokenised ("0 @.@ 7") and the other not
    ("0.7"). 16 bytes are kept of each, so memory grows with the number of held-out documents alone.
    """

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self.bytes = 0
        self.validation_in_test = 0
        self._texts: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}
        self._titles: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}

    def add(self, split: str, text: str, title: str | None, size: int) -> None:
        """Add a document, those of test first. `title`: its first line if that is one; `size`: its bytes."""
        if split == VALIDATION and self.find(text, title, among=(TEST,)) is not None:
            self.validation_in_test += 1
        self.splits.add(split)
        self.bytes += size
        if title is not None:
            self._titles[split].add(_key(title))
        if not (body := _body(text, title)).isspace():
            self._texts[split].add(_key(body))

    def find(self, text: str, title: str | None, among: tuple[str, ...] = (TEST, VALIDATION)) -> str | None:
        """SAME_TEXT or SAME_TITLE if a held-out document of the splits `among` has it, else None."""
        if title is not None and _is_in(self._titles, among, _key(title)):
            return SAME_TITLE
        return SAME_TEXT if _is_in(self._texts, among, _key(_body(text, title))) else None


def _is_in(keys: dict[str, set[bytes]], splits: tuple[str, ...], key: bytes) -> bool:
    return any(key in keys[split] for split in splits)


def _body(text: str, title: str | None) -> str:
    """The text below the title, never empty."""
    return text if title is None else text[len(title) :] + "\n"


def _key(text: str) -> bytes:
    letters = _OTHER_CHARACTERS.sub("", text.casefold()) or "".join(text.split())
    return hashlib.blake2b(letters.encode(), digest_size=16).digest()
