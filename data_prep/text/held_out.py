"""Texts given as validation and test, and which other documents also stand in them: those must not be trained on."""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Iterator
from typing import Any

TEST, VALIDATION = "test", "validation"
SAME_TEXT, SAME_TITLE = "same_text", "same_title"

# Training documents are looked through in windows of so many words; a passage of twice as many holds a whole one.
WINDOW_WORDS = 13
# The share of its windows from which on a training document counts as one that is mostly held-out text.
MOST = 0.5

_OTHER_CHARACTERS = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")


class HeldOut:
    """The marks of the held-out documents: their text and, under a heading ' = Title = ', their title.

    Of both only letters and digits count, in one case and one Unicode form (NFKC), since one text may be tokenised
    ("0 @.@ 7") and the other not ("0.7"), or hold accents as characters of their own. 16 bytes are kept of each; and of
    every WINDOW_WORDS words in a row 8 bytes, for `overlap`. So memory grows with the held-out text alone: by about 1.5
    bytes for each of its own.
    """

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self.bytes = 0
        self.validation_in_test = 0
        self.overlapping = {"words": WINDOW_WORDS, "some": 0, "most": 0}
        self._texts: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}
        self._titles: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}
        self._windows = array("Q")
        self._sorted: Any = ()

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
        self._windows.extend(_windows(text, step=1))

    def find(self, text: str, title: str | None, among: tuple[str, ...] = (TEST, VALIDATION)) -> str | None:
        """SAME_TEXT or SAME_TITLE if a held-out document of the splits `among` has it, else None."""
        if title is not None and _is_in(self._titles, among, _key(title)):
            return SAME_TITLE
        return SAME_TEXT if _is_in(self._texts, among, _key(_body(text, title))) else None

    def count_overlap(self, text: str) -> None:
        """Count a training document in `overlapping`, if it shares windows with held-out text, or has most of them."""
        share = self.overlap(text)
        self.overlapping["some"] += share > 0
        self.overlapping["most"] += share >= MOST

    def overlap(self, text: str) -> float:
        """The share of a document's windows, one behind the other, that stand in a held-out document; 0 without one.

        What is left over at the end, shorter than a window, is not looked at.
        """
        import numpy as np  # here: the options of the command need no library

        if len(self._sorted) != len(self._windows):
            self._sorted = np.sort(np.frombuffer(self._windows, np.uint64))
        keys = np.fromiter(_windows(text, step=WINDOW_WORDS), np.uint64)
        if not len(keys) or not len(self._sorted):
            return 0.0
        places = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
        return float((self._sorted[places] == keys).mean())


def _windows(text: str, step: int) -> Iterator[int]:
    """A number for every window of WINDOW_WORDS words of a text, of which each begins `step` words behind the last."""
    words = _WORD.findall(_in_one_form(text))
    for start in range(0, len(words) - WINDOW_WORDS + 1, step):
        window = " ".join(words[start : start + WINDOW_WORDS]).encode()
        yield int.from_bytes(hashlib.blake2b(window, digest_size=8).digest(), "big")


def _is_in(keys: dict[str, set[bytes]], splits: tuple[str, ...], key: bytes) -> bool:
    return any(key in keys[split] for split in splits)


def _body(text: str, title: str | None) -> str:
    """The text below the title, never empty."""
    return text if title is None else text[len(title) :] + "\n"


def _in_one_form(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _key(text: str) -> bytes:
    letters = _OTHER_CHARACTERS.sub("", _in_one_form(text)) or "".join(text.split())
    return hashlib.blake2b(letters.encode(), digest_size=16).digest()
