"""The first stage of a preparation in shares: each counts files of its own, and the counts add up to the first look."""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import atomic_path
from longmix.data_prep.split_names import TRAIN, VALIDATION
from longmix.data_prep.text.first_look import SAMPLE_CHARACTERS, FirstLook, Tally
from longmix.data_prep.text.held_out import HeldOut
from longmix.data_prep.text.parts import Part
from longmix.data_prep.text.prepare import Sources
from longmix.data_prep.text.reading import Document, Reader, SourceCounts, read_held_out
from longmix.data_prep.text.shares import ANEW, Share
from longmix.data_prep.text.sources import Source

_ENTRY = struct.Struct(">QI")


@dataclass(frozen=True)
class Piece:
    """One file of the texts. `place`: of its source among those of its split; `split`: of a text that is one, whole."""

    source: Source
    place: int
    part: Part
    split: str | None

    def documents(self, reader: Reader) -> Iterator[tuple[str | None, Document]]:
        """Every document of the file, read by a `Reader` of this file alone."""
        for document in reader.read(0, self.part):
            yield self.split, document


@dataclass
class Count:
    """What one file holds. `digests`: of its documents that may be validation."""

    piece: int
    fingerprint: list[Any]
    documents: int
    counts: SourceCounts
    left_out: dict[str, int]
    heading_found: bool
    digests: list[int]


@dataclass
class Counted:
    """counted.json of a share: its files, what it gathered of them, and the marks' files as it found them."""

    files: list[Count]
    highest: int
    bytes: int
    lowest: list[list[int]]
    held_out: list[Any]


@dataclass
class Plan:
    """plan.json, of share 0: the threshold, and of each file its fingerprint and documents by split."""

    threshold: int
    fingerprints: list[list[Any]]
    documents: list[dict[str, int]]


class Files:
    """All files of the texts, in the order in which one host reads them."""

    def __init__(self, texts: Sources) -> None:
        self.texts = texts
        self.pieces = [
            Piece(source, place, part, split)
            for split, sources in ((None, texts.sources), *texts.others.items())
            for place, source in enumerate(sources)
            for part in source.parts
        ]
        self.sizes = [piece.part.path.stat().st_size for piece in self.pieces]

    def listing(self) -> list[list[Any]]:
        """[name, bytes] of each file, on which all shares agree."""
        return [
            [f"{piece.source} ({piece.part.path.name}, {piece.part.kind})", size]
            for piece, size in zip(self.pieces, self.sizes, strict=True)
        ]

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The marks of the texts that are splits."""
        return read_held_out(self.texts.others, self.texts.rule)

    def reader(self, piece: Piece) -> Reader:
        """A reader of one file alone."""
        source = Source(piece.source.name, (piece.part,), piece.source.option)
        return Reader([source], self.texts.rule, held_out=self.held_out if piece.split is None else None)

    def of_share(self, share: Share) -> list[int]:
        """The files that a share counts: neighbours, as near to an equal part of the bytes as whole files allow."""
        total, before, own = max(sum(self.sizes), 1), 0, []
        for index, size in enumerate(self.sizes):
            if min(int((before + size / 2) * share.count / total), share.count - 1) == share.index:
                own.append(index)
            before += size
        return own

    def count(
        self, indices: list[int], with_sample: bool, advance: Callable[[int], None]
    ) -> tuple[Counted, list[tuple[int, str]]]:
        """What these files hold, and (digest, text) for the tokenizer. `advance` is told the bytes of each document."""
        tally = Tally(with_sample)
        held_out = [piece.part.fingerprint() for piece in self.pieces if piece.split is not None]
        counts, digests = [], []
        for index in indices:
            count, found = self._count(index, tally, advance)
            counts.append(count)
            digests.append(found)
        for count, found in zip(counts, digests, strict=True):
            count.digests = [digest for digest in found if tally.may_be_validation(digest)]
        lowest = [[-negative, size] for negative, size in tally.lowest]
        return Counted(counts, tally.highest, tally.bytes, lowest, held_out), tally.sample

    def _count(self, index: int, tally: Tally, advance: Callable[[int], None]) -> tuple[Count, array]:
        piece = self.pieces[index]
        fingerprint = piece.part.fingerprint()
        reader = self.reader(piece)
        digests = array("Q")
        for _, document in piece.documents(reader):
            advance(document.size)
            if piece.split is None:
                tally.add(document)
                if tally.may_be_validation(document.digest):
                    digests.append(document.digest)
        counts = reader.counts[0]
        count = Count(index, fingerprint, counts.documents, counts, reader.left_out[0], reader.heading_found, [])
        return count, digests

    def plan(self, counted: list[Counted], look: FirstLook) -> Plan:
        """What all shares must know to cut blocks. Raises `UserError` if held-out text changed between the shares."""
        counts = self._in_order(counted)
        fingerprints = [count.fingerprint for count in counts]
        held_out = [found for found, piece in zip(fingerprints, self.pieces, strict=True) if piece.split is not None]
        if any(one.held_out != held_out for one in counted):
            raise UserError(f"the text of --validation or --test has changed while the shares counted: {ANEW}")
        documents = [_documents_by_split(piece, count, look) for piece, count in zip(self.pieces, counts, strict=True)]
        return Plan(look.threshold, fingerprints, documents)

    def read_reader(self, counted: list[Counted]) -> Reader:
        """A reader of the sources as it is when it has read them. Raises `UserError` for what it would refuse then."""
        reader = Reader(self.texts.sources, self.texts.rule, held_out=self.held_out)
        for piece, count in zip(self.pieces, self._in_order(counted), strict=True):
            if piece.split is None:
                reader.counts[piece.place].add(count.counts)
                for name, number in count.left_out.items():
                    reader.left_out[piece.place][name] += number
                reader.heading_found = reader.heading_found or count.heading_found
        for place in range(len(self.texts.sources)):
            reader.require_text(place)
        reader.require_heading()
        return reader

    def _in_order(self, counted: list[Counted]) -> list[Count]:
        files = {count.piece: count for one in counted for count in one.files}
        return [files[index] for index in range(len(self.pieces))]

    def require_unchanged(self, index: int, plan: Plan) -> None:
        """Raise `UserError` unless a file is as it was when it was counted."""
        part = self.pieces[index].part
        if part.fingerprint() != plan.fingerprints[index]:
            raise UserError(f"{part.path} has changed since it was counted: {ANEW}")


def _documents_by_split(piece: Piece, count: Count, look: FirstLook) -> dict[str, int]:
    """The documents of a file by split."""
    if piece.split is not None:
        return {piece.split: count.documents}
    held = sum(digest < look.threshold for digest in count.digests)
    return {TRAIN: count.documents - held, VALIDATION: held}


# -----------------------------------------------------------------------------
# Adding up. Of each sample only what can stand in that of all is read.


def add_up(
    counted: list[Counted], samples: list[Path], with_sample: bool, sample_characters: int = SAMPLE_CHARACTERS
) -> Tally:
    """The tally of all shares, from their counts and the files of their samples."""
    tally = Tally(with_sample, sample_characters)
    for one, path in zip(counted, samples, strict=True):
        tally.merge(one.highest, one.bytes, [(digest, size) for digest, size in one.lowest])
        for digest, text in _read_sample(path):
            if not tally.add_sample(digest, text):
                break
    return tally


def write_sample(path: Path, sample: list[tuple[int, str]]) -> None:
    """Write (digest, text), the largest digest first."""
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        for digest, text in sorted(sample, reverse=True):
            encoded = text.encode()
            stream.write(_ENTRY.pack(digest, len(encoded)) + encoded)


def _read_sample(path: Path) -> Iterator[tuple[int, str]]:
    """The documents (digest, text) of a share's sample, the largest digest first."""
    with open(path, "rb") as stream:
        while header := stream.read(_ENTRY.size):
            digest, size = _ENTRY.unpack(header)
            yield digest, stream.read(size).decode()
