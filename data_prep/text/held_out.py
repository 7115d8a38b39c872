"""Texts given as validation and test, and which other documents also stand in them: those must not be trained on."""

import hashlib
import re
import sys
import unicodedata
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longmix.data_prep.files import atomic_path

TEST, VALIDATION = "test", "validation"
SAME_TEXT, SAME_TITLE = "same_text", "same_title"

# Training documents are looked through in windows of so many words; a passage of twice as many holds a whole one.
WINDOW_WORDS = 13
# The share of its windows from which on a training document counts as one that is mostly held-out text.
MOST = 0.5

# The figures of a block of documents: how many share windows with held-out text, and how many most of theirs.
FIGURES = SOME_FIGURE, MOST_FIGURE = "overlapping_some", "overlapping_most"

_OTHER_CHARACTERS = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# Bytes of UTF-8: of ASCII only letters and digits are left, in lower case; the bytes of other characters stay.
_SPACED = bytes(byte if byte >= 0x80 or chr(byte).isalnum() else 0x20 for byte in range(256)).lower()
_MOST_REPLACED = 16  # different characters that are no letters; of more, a regular expression is faster

# A document whose first letters begin no held-out one is none of these; they are told from its first characters.
_HEAD_LETTERS, _HEAD_CHARACTERS, _SHORTEST_HEAD = 32, 128, 64


class HeldOut:
    """The marks of the held-out documents: their text and, under a heading ' = Title = ', their title.

    Of both only letters and digits count, in one case and one Unicode form (NFKC), since one text may be tokenised
    ("0 @.@ 7") and the other not ("0.7"), or hold accents as characters of their own. 16 bytes are kept of each; and of
    every WINDOW_WORDS words in a row 8 bytes, for `Windows`. So memory grows with the held-out text alone: by about 1.5
    bytes for each of its own.
    """

    def __init__(self) -> None:
        self.splits: set[str] = set()
        self.bytes = 0
        self.validation_in_test = 0
        self.overlapping = {"words": WINDOW_WORDS, "some": 0, "most": 0}
        self._texts: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}
        self._titles: dict[str, set[bytes]] = {TEST: set(), VALIDATION: set()}
        self._heads: set[int] = set()
        self._windows = array("Q")

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
            self._heads.add(hash(_letters(body)[:_HEAD_LETTERS]))
        self._windows.extend(_windows(text, step=1))

    def find(self, text: str, title: str | None, among: tuple[str, ...] = (TEST, VALIDATION)) -> str | None:
        """SAME_TEXT or SAME_TITLE if a held-out document of the splits `among` has it, else None."""
        if title is not None and _is_in(self._titles, among, _key(title)):
            return SAME_TITLE
        head = _head(text, 0 if title is None else len(title))
        if head is not None and hash(head) not in self._heads:
            return None
        return SAME_TEXT if _is_in(self._texts, among, _key(_body(text, title))) else None

    def windows(self) -> "Windows":
        """Of all held-out documents."""
        import numpy as np  # here: the options of the command need no library

        return Windows(np.sort(np.frombuffer(self._windows, np.uint64)))

    def sum_up(self, blocks: Iterable[Mapping[str, Any]]) -> None:
        """Set `overlapping` to the sums of the FIGURES of these blocks."""
        figures = list(blocks)
        for name, figure in (("some", SOME_FIGURE), ("most", MOST_FIGURE)):
            self.overlapping[name] = sum(block[figure] for block in figures)


class Windows:
    """The numbers of windows of held-out text, sorted, which all processes that look for them can share as a file."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers

    def save(self, path: Path) -> None:
        """Write the file that `load` maps."""
        with atomic_path(path) as temporary:
            self._numbers.tofile(temporary)

    @classmethod
    def load(cls, path: Path) -> "Windows":
        import numpy as np

        is_empty = path.stat().st_size == 0  # which cannot be mapped
        # As a plain array: numpy's class of mapped ones does all that is asked of it in Python, too.
        return cls(np.empty(0, np.uint64) if is_empty else np.asarray(np.memmap(path, np.uint64, "r")))

    def overlap(self, text: str) -> float:
        """The share of a document's windows, one behind the other, that stand in a held-out document; 0 without one.

        What is left over at the end, shorter than a window, is not looked at.
        """
        import numpy as np

        keys = np.frombuffer(_windows(text, step=WINDOW_WORDS), np.uint64)
        if not len(keys) or not len(self._numbers):
            return 0.0
        places = np.searchsorted(self._numbers, keys)
        return float((self._numbers.take(places, mode="clip") == keys).mean())

    def figures(self, text: str) -> dict[str, int]:
        """FIGURES of one document."""
        share = self.overlap(text)
        return {SOME_FIGURE: int(share > 0), MOST_FIGURE: int(share >= MOST)}


def _windows(text: str, step: int) -> array:
    """A number for every window of WINDOW_WORDS words of a text, of which each begins `step` words behind the last."""
    words = _words(text)
    starts = range(0, len(words) - WINDOW_WORDS + 1, step)
    windows = [b" ".join(words[start : start + WINDOW_WORDS]) for start in starts]
    numbers = array("Q", b"".join([hashlib.blake2b(window, digest_size=8).digest() for window in windows]))
    if sys.byteorder == "little":  # they are those of the digests as big-endian numbers
        numbers.byteswap()
    return numbers


def _words(text: str) -> list[bytes]:
    """The words of a text in one form, in UTF-8: what `_WORD` finds, several times as fast."""
    text = _in_one_form(text)
    if not text.isascii():
        others = {character for character in _NOT_ASCII.findall(text) if not character.isalnum()}
        if len(others) > _MOST_REPLACED:
            return [word.encode() for word in _WORD.findall(text)]
        for character in others:
            text = text.replace(character, " ")
    return text.encode().translate(_SPACED).split()


def _is_in(keys: dict[str, set[bytes]], splits: tuple[str, ...], key: bytes) -> bool:
    return any(key in keys[split] for split in splits)


def _body(text: str, title: str | None) -> str:
    """The text below the title, never empty."""
    return text if title is None else text[len(title) :] + "\n"


def _in_one_form(text: str) -> str:
    return text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _letters(text: str) -> str:
    return _OTHER_CHARACTERS.sub("", _in_one_form(text))


def _key(text: str) -> bytes:
    letters = _letters(text) or "".join(text.split())
    return hashlib.blake2b(letters.encode(), digest_size=16).digest()


def _head(text: str, start: int) -> str | None:
    """The first _HEAD_LETTERS of `_letters(text[start:])`, all if there are fewer; None if its beginning tells not."""
    piece = text[start : start + _HEAD_CHARACTERS]
    if start + _HEAD_CHARACTERS >= len(text):
        return _letters(piece)[:_HEAD_LETTERS]
    # Characters change together with those before them (an accent, a vowel of Hangul), but none of these does.
    for end in range(_HEAD_CHARACTERS - 1, _SHORTEST_HEAD, -1):
        if _begins_anew(piece[end]):
            letters = _letters(piece[:end])
            return letters[:_HEAD_LETTERS] if len(letters) >= _HEAD_LETTERS else None
    return None


def _begins_anew(character: str) -> bool:
    """True for ASCII, kana, ideographs and syllables of Hangul: what stands before is normalised without them."""
    return (
        character < "\x80"
        or "\u4e00" <= character <= "\u9fff"
        or "\u3041" <= character <= "\u3096"
        or "\u30a1" <= character <= "\u30fa"
        or "\uac00" <= character <= "\ud7a3"
    )
