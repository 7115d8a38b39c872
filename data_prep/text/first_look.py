"""The first look at the sources, which decides what all blocks need: the split's threshold, the tokenizer's text.

What it gathers of the documents does not depend on their order, so the looks of several hosts at parts of the sources
add up to that of one.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.split_names import TRAIN, VALIDATION
from longmix.data_prep.text.documents import Rule
from longmix.data_prep.text.held_out import HeldOut
from longmix.data_prep.text.reading import Document, Reader, SourceCounts
from longmix.data_prep.text.sources import Source

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

    def split_of(self, document: Document) -> str:
        """The split of a document of the sources."""
        return VALIDATION if document.digest < self.threshold else TRAIN

    def figures(self) -> dict[str, Any]:
        """The figures that resuming needs; sample and counts are not kept."""
        return {"threshold": self.threshold, "documents": self.documents, "bytes": self.bytes}


class Tally:
    """What threshold and sample are made of, gathered from documents in any order."""

    def __init__(self, with_sample: bool, sample_characters: int = SAMPLE_CHARACTERS) -> None:
        self.with_sample = with_sample
        self.sample_characters = sample_characters
        self.highest, self.bytes = -1, 0
        self.lowest: list[tuple[int, int]] = []  # a heap, the largest digest first: (-digest, bytes) of the smallest
        self.sample: list[tuple[int, str]] = []  # a heap, the smallest digest first
        self._in_lowest = self._sampled = 0

    def add(self, document: Document) -> None:
        self.highest, self.bytes = max(self.highest, document.digest), self.bytes + document.size
        self._add_lowest(document.digest, document.size)
        if self.with_sample:
            self.add_sample(document.digest, document.text)

    def add_sample(self, digest: int, text: str) -> bool:
        """Add a document to the sample; False if it is full of documents with larger digests."""
        if self._sampled >= self.sample_characters and digest < self.sample[0][0]:
            return False
        heapq.heappush(self.sample, (digest, text[:_SAMPLE_DOCUMENT_CHARACTERS]))
        self._sampled += min(len(text), _SAMPLE_DOCUMENT_CHARACTERS)
        while self._sampled - len(self.sample[0][1]) >= self.sample_characters:
            self._sampled -= len(heapq.heappop(self.sample)[1])
        return True

    def merge(self, highest: int, size: int, lowest: Iterable[tuple[int, int]]) -> None:
        """Add what another tally has gathered, but for its sample. `lowest`: (digest, bytes) of its lowest."""
        self.highest, self.bytes = max(self.highest, highest), self.bytes + size
        for digest, one in lowest:
            self._add_lowest(digest, one)

    def may_be_validation(self, digest: int) -> bool:
        """False if, whatever else is read, the document is below no threshold."""
        return self._in_lowest < _VALIDATION_BYTES or digest < _VALIDATION_SHARE or -digest >= self.lowest[0][0]

    def _add_lowest(self, digest: int, size: int) -> None:
        if self._in_lowest < _VALIDATION_BYTES or -digest > self.lowest[0][0]:
            heapq.heappush(self.lowest, (-digest, size))
            self._in_lowest += size
            while self._in_lowest - self.lowest[0][1] >= _VALIDATION_BYTES:
                self._in_lowest -= heapq.heappop(self.lowest)[1]


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
    tally = Tally(with_sample, sample_characters)
    for document in reader:
        advance(document.size)
        tally.add(document)
    return conclude(tally, reader)


def conclude(tally: Tally, reader: Reader) -> FirstLook:
    """The first look from a tally of all documents, which `reader` has read.

    Raises `UserError` as `take_first_look`.
    """
    lowest = sorted(tally.lowest, reverse=True)
    if not lowest:
        raise UserError("every document of the sources also stands in --validation or --test: nothing is left to learn")
    number = sum(counts.documents for counts in reader.counts)
    has_validation = reader.held_out is not None and VALIDATION in reader.held_out.splits
    if not has_validation and -lowest[0][0] == tally.highest:
        raise UserError(
            f"the sources hold {'one document' if number == 1 else f'{number} documents, all alike'}: training and "
            "validation need two different ones; give more text, or cut it otherwise with --documents (record makes "
            "each line of a text a document)"
        )
    # A document that `Tally.may_be_validation` refuses is never below it.
    threshold = 0 if has_validation else min(max(_VALIDATION_SHARE, _threshold(lowest, tally.bytes)), tally.highest)
    return FirstLook(
        threshold=threshold,
        documents=number if reader.complete else None,
        bytes=sum(counts.bytes for counts in reader.counts) if reader.complete else None,
        sample=[text for digest, text in sorted(tally.sample) if digest >= threshold],
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
