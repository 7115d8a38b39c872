"""Packing token ids of documents into rows `[CLS] document [SEP] document [SEP] ...` of a fixed length."""

from collections.abc import Sequence
from typing import NamedTuple

from longmix.data_prep.manifest_fields import DOCUMENTS, ONE_PER_ROW

SMALLEST_LENGTH = 8


class Row(NamedTuple):
    """One sample: its token ids, and the offsets at which its documents start (the first is 0)."""

    input_ids: list[int]
    document_starts: list[int]


class Packer:
    """Packs documents in the order they are added; every row starts with [CLS], every document ends with [SEP].

    [CLS] belongs to the row's first document, each [SEP] to the one it ends; what does not fit goes on in the next
    row. With "documents" every row but the last is full, with "one-per-row" each row holds a piece of one document.
    A last row of [CLS] [SEP] alone would have nothing to learn from: the row before gives it its last token.
    """

    def __init__(self, sequence_length: int, cls_id: int, sep_id: int, packing: str = DOCUMENTS) -> None:
        if sequence_length < SMALLEST_LENGTH:
            raise ValueError(f"sequence_length is {sequence_length}, allowed: {SMALLEST_LENGTH} or more")
        if packing not in (DOCUMENTS, ONE_PER_ROW):
            raise ValueError(f"packing is {packing!r}, allowed: {DOCUMENTS!r}, {ONE_PER_ROW!r}")
        self.sequence_length = sequence_length
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.one_per_row = packing == ONE_PER_ROW
        self._full: Row | None = None  # the newest full row: it may have to give its last token away
        self._row: Row | None = None

    def add(self, document: Sequence[int]) -> list[Row]:
        """Add the ids (without special tokens) of one document; returns the rows that are finished."""
        finished: list[Row] = []
        if not document:
            return finished
        body = [*document, self.sep_id]
        position = 0
        while position < len(body):
            if self._row is None:
                self._row = Row([self.cls_id], [0])
            elif position == 0:
                self._row.document_starts.append(len(self._row.input_ids))
            piece = body[position : position + self.sequence_length - len(self._row.input_ids)]
            self._row.input_ids.extend(piece)
            position += len(piece)
            if len(self._row.input_ids) == self.sequence_length:
                if self._full is not None:
                    finished.append(self._full)
                self._full, self._row = self._row, None
        if self.one_per_row:
            finished.extend(self.finish())
        return finished

    def finish(self) -> list[Row]:
        """The rows that are left, the last one short: the counted tail. The packer can then start anew."""
        if self._row is not None and self._full is not None and len(self._row.input_ids) == 2:
            self._row.input_ids.insert(1, self._full.input_ids.pop())
            if self._full.document_starts[-1] == len(self._full.input_ids):
                self._full.document_starts.pop()
        left = [row for row in (self._full, self._row) if row is not None]
        self._full = self._row = None
        return left
