"""Reading all sources as one stream of documents, counted per source."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from longmix.data_prep.errors import UserError
from longmix.data_prep.text.documents import HEADING, Rule, split_documents
from longmix.data_prep.text.held_out import SAME_TEXT, SAME_TITLE, HeldOut
from longmix.data_prep.text.parts import HubDataset, Part
from longmix.data_prep.text.sources import Source

SPLIT_KEY = b"longmix-split-0"
_SHOWN_CHARACTERS = 60


class Document(NamedTuple):
    """A document that is not blank; `digest` decides its split and whether the tokenizer is trained on it.

    `title` is its first line if that is a heading ' = Title = '.
    """

    text: str
    size: int
    digest: int
    title: str | None


@dataclass
class SourceCounts:
    """Counts of what was read from one source; `bytes` are of UTF-8.

    `kinds`: what its files were read as. `begins`: the first words of its first document.
    """

    documents: int = 0
    bytes: int = 0
    blank: int = 0
    rules: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    begins: str = ""

    def add(self, others: "SourceCounts") -> None:
        """Add the counts of what was read next."""
        self.begins = self.begins or others.begins
        self.documents += others.documents
        self.bytes += others.bytes
        self.blank += others.blank
        self.rules += [name for name in others.rules if name not in self.rules]
        self.kinds += [name for name in others.kinds if name not in self.kinds]

    def describe(self) -> str:
        """What it was taken for, for the console: a wrong guess is seen before it is learned."""
        number = f"{self.documents:,} document{'' if self.documents == 1 else 's'}"
        return f"{' and '.join(self.kinds)}, {number}, the first begins {self.begins!r}"


# -----------------------------------------------------------------------------
# One stream of documents, whatever the sources.


class Reader:
    """Iterates over the documents of the sources, in order, and counts them per source in `counts`.

    Documents that also stand in `held_out` are left out, and counted per source in `left_out`.
    """

    def __init__(
        self, sources: list[Source], rule: Rule, hub_limit: int | None = None, held_out: HeldOut | None = None
    ) -> None:
        self.sources = sources
        self.rule = rule
        self.hub_limit = hub_limit
        self.held_out = held_out
        self.complete = True
        self.heading_found = False
        self.counts = [SourceCounts() for _ in sources]
        self.left_out = [{SAME_TEXT: 0, SAME_TITLE: 0} for _ in sources]

    def __iter__(self) -> Iterator[Document]:
        """Raises `UserError` for a source without text and for a heading that is nowhere to be found."""
        for place, source in enumerate(self.sources):
            for part in source.parts:
                yield from self.read(place, part)
            self.require_text(place)
        self.require_heading()

    def read(self, place: int, part: Part) -> Iterator[Document]:
        """The documents of one part of source number `place`."""
        counts, left_out = self.counts[place], self.left_out[place]
        kind = f"{part.kind} (told by content)" if getattr(part, "by_content", False) else part.kind
        if kind not in counts.kinds:
            counts.kinds.append(kind)
        rule, texts = split_documents(part.units(), self.rule, part.is_records)
        for text in texts:
            if not text or text.isspace():
                counts.blank += 1
                continue
            if rule.name not in counts.rules:
                counts.rules.append(rule.name)
            if rule.kind == HEADING and not self.heading_found:
                self.heading_found = rule.pattern.search(text.split("\n", 1)[0]) is not None
            title = _title(text, rule)
            if self.held_out is not None and (found := self.held_out.find(text, title)) is not None:
                left_out[found] += 1
                continue
            encoded = text.encode()
            if not counts.documents:
                counts.begins = _beginning(text)
            counts.documents += 1
            counts.bytes += len(encoded)
            yield Document(text, len(encoded), _digest(encoded), title)
            if self.hub_limit and isinstance(part, HubDataset) and counts.bytes >= self.hub_limit:
                self.complete = False
                break

    def require_text(self, place: int) -> None:
        """Raise `UserError` if nothing but blank documents was found in source number `place`."""
        if not self.counts[place].documents and not any(self.left_out[place].values()):
            raise UserError(f"{self.sources[place]} holds no text: every document in it is blank, or it is empty")

    def require_heading(self) -> None:
        """Raise `UserError` if headings are asked for and none was found."""
        if self.rule.kind == HEADING and not self.heading_found:
            option = self.sources[0].option.removeprefix("--")
            raise UserError(f"--documents {self.rule.name}: no line of any {option} matches it")


def _beginning(text: str) -> str:
    shown = " ".join(text[: 4 * _SHOWN_CHARACTERS].split())
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS].rstrip() + "..."


def _title(text: str, rule: Rule) -> str | None:
    if not rule.is_title:
        return None
    line = text.split("\n", 1)[0]
    return line if rule.pattern.fullmatch(line) else None


def read_held_out(sources: dict[str, list[Source]], rule: Rule) -> HeldOut | None:
    """The marks of all documents of these sources, by split; None without sources. Raises `UserError`."""
    held_out = HeldOut() if sources else None
    for split in sorted(sources):  # test, then validation
        for document in Reader(sources[split], rule):
            held_out.add(split, document.text, document.title, document.size)
    return held_out


def _digest(encoded: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8, key=SPLIT_KEY).digest(), "big")
