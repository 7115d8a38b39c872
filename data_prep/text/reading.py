"""Reading all sources as one stream of documents, and the first look at it: counts, split, tokenizer sample."""

import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from longmix.data_prep.errors import UserError
from longmix.data_prep.text.documents import HEADING, Rule, split_documents
from longmix.data_prep.text.held_out import SAME_TEXT, SAME_TITLE, VALIDATION, HeldOut
from longmix.data_prep.text.sources import HubDataset, Source

SPLIT_KEY = b"longmix-split-0"
SPLIT_RULE = (
    "by document: BLAKE2b of 8 bytes over its UTF-8 text, keyed 'longmix-split-0', read as a big-endian number; "
    "validation below {threshold}, else train. That number is 1 % of the range; for a small corpus more, until "
    "validation has 5 % of the text or 256 kB"
)
_RANGE = 1 << 64
_VALIDATION_SHARE = _RANGE // 100
_VALIDATION_BYTES = 256_000
_SMALLEST_VALIDATION_SHARE = 0.05

HELD_OUT_RULE = "{split}: the text given as --{split}, whole"
TRAINING_RULE = "train: --source, without the documents whose text or title stands in the other splits"
LEFT_OUT_RULE = "before that, documents whose text or title stands in the test split are left out of --source"

SAMPLE_CHARACTERS = 40_000_000  # the text that a tokenizer is trained on: more of it changes the vocabulary little
_SAMPLE_DOCUMENT_CHARACTERS = 2_000_000
_HUB_LOOK_BYTES = 2 * SAMPLE_CHARACTERS
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
        self.counts = [SourceCounts() for _ in sources]
        self.left_out = [{SAME_TEXT: 0, SAME_TITLE: 0} for _ in sources]

    def __iter__(self) -> Iterator[Document]:
        """Raises `UserError` for a source without text and for a heading that is nowhere to be found."""
        heading_found = False
        for source, counts, left_out in zip(self.sources, self.counts, self.left_out, strict=True):
            for part in source.parts:
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
                    if rule.kind == HEADING and not heading_found:
                        heading_found = rule.pattern.search(text.split("\n", 1)[0]) is not None
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
            if not counts.documents and not any(left_out.values()):
                raise UserError(f"{source} holds no text: every document in it is blank, or it is empty")
        if self.rule.kind == HEADING and not heading_found:
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


# -----------------------------------------------------------------------------
# The first look decides what all blocks need to know: the split's threshold and the tokenizer's text.


@dataclass
class FirstLook:
    """The figures of one reading of the sources (of hub data sets: their beginning).

    `threshold`: documents with a smaller digest are validation. `documents` and `bytes` are None if a hub data set was
    not read to its end. `sample` holds the texts for the tokenizer, of the training split only. `counts` are those of
    each source, of hub data sets: of their beginning.
    """

    threshold: int
    documents: int | None
    bytes: int | None
    sample: list[str]
    counts: list[SourceCounts] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The figures that resuming needs; sample and counts are not kept."""
        return {"threshold": self.threshold, "documents": self.documents, "bytes": self.bytes}


def take_first_look(
    sources: list[Source],
    rule: Rule,
    with_sample: bool,
    advance: Callable[[int], None],
    sample_characters: int = SAMPLE_CHARACTERS,
    held_out: HeldOut | None = None,
) -> FirstLook:
    """Read the sources once.

    The sample is the training documents with the largest digests that fill `sample_characters`: spread evenly over
    all sources, the same whatever their order. `advance` is told the bytes of each document. If `held_out` has the
    validation split, the sources are training text alone, and the threshold is 0.

    Raises `UserError` if there are fewer than two different documents (nothing could be split), or none to train on.
    """
    reader = Reader(sources, rule, hub_limit=_HUB_LOOK_BYTES, held_out=held_out)
    highest, total = -1, 0
    lowest: list[tuple[int, int]] = []  # a heap, the largest digest first: (-digest, bytes) of the smallest ones
    in_lowest = 0
    sample: list[tuple[int, str]] = []  # a heap, the smallest digest first
    sampled = 0
    for document in reader:
        advance(document.size)
        highest, total = max(highest, document.digest), total + document.size
        if in_lowest < _VALIDATION_BYTES or -document.digest > lowest[0][0]:
            heapq.heappush(lowest, (-document.digest, document.size))
            in_lowest += document.size
            while in_lowest - lowest[0][1] >= _VALIDATION_BYTES:
                in_lowest -= heapq.heappop(lowest)[1]
        if not with_sample or (sampled >= sample_characters and document.digest < sample[0][0]):
            continue
        heapq.heappush(sample, (document.digest, document.text[:_SAMPLE_DOCUMENT_CHARACTERS]))
        sampled += min(len(document.text), _SAMPLE_DOCUMENT_CHARACTERS)
        while sampled - len(sample[0][1]) >= sample_characters:
            sampled -= len(heapq.heappop(sample)[1])
    lowest.sort(reverse=True)
    if not lowest:
        raise UserError("every document of the sources also stands in --validation or --test: nothing is left to learn")
    has_validation = held_out is not None and VALIDATION in held_out.splits
    if not has_validation and -lowest[0][0] == highest:
        number = sum(counts.documents for counts in reader.counts)
        raise UserError(
            f"the sources hold {'one document' if number == 1 else f'{number} documents, all alike'}: training and "
            "validation need two different ones; give more text, or cut it otherwise with --documents (record makes "
            "each line of a text a document)"
        )
    threshold = 0 if has_validation else min(max(_VALIDATION_SHARE, _threshold(lowest, total)), highest)
    complete = reader.complete
    return FirstLook(
        threshold=threshold,
        documents=sum(counts.documents for counts in reader.counts) if complete else None,
        bytes=sum(counts.bytes for counts in reader.counts) if complete else None,
        sample=[text for digest, text in sorted(sample) if digest >= threshold],
        counts=reader.counts,
    )


def _threshold(lowest: list[tuple[int, int]], total: int) -> int:
    """The smallest threshold that gives a small corpus a validation split worth evaluating on."""
    wanted = min(_VALIDATION_BYTES, _SMALLEST_VALIDATION_SHARE * total)
    taken = threshold = 0
    for negative, size in lowest:
        if taken >= wanted:
            break
        taken += size
        threshold = 1 - negative
    return threshold


def _digest(encoded: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8, key=SPLIT_KEY).digest(), "big")
