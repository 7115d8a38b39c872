"""The unit of preparation: a block of documents, encoded and packed alone, by any process at any time."""

import contextlib
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import naming
from longmix.data_prep.files import write_json
from longmix.data_prep.parquet_columns import parquet_file
from longmix.data_prep.shard_writer import ShardFile
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.state_files import read_or_none
from longmix.data_prep.text import held_out
from longmix.data_prep.text.packing import Packer
from longmix.data_prep.tokenizer import MODEL, encode, load_tokenizer
from longmix.kernels.common.safe_files import open_emptied

BLOCK_DOCUMENTS = 2048
COLUMNS = {"input_ids": LIST_INT32, "document_starts": LIST_INT32}
# Of a block, and of a split their sums.
FIGURES = ("documents", "empty_documents", "bytes", "words", "document_tokens", "unknown_tokens", "samples", "tokens")
_BATCH_BYTES = 1 << 18
_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class BlockSettings:
    """A worker's settings. `native`: the SentencePiece model alone gives the tokenizer's ids.

    `windows`: the file of those of held-out text, if passages of it are to be looked for.
    """

    tokenizer: str
    native: bool
    cls_id: int
    sep_id: int
    unknown_id: int | None
    sequence_length: int
    packing: str
    windows: str | None = None

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures of a block."""
        return FIGURES if self.windows is None else (*FIGURES, *held_out.FIGURES)


class BlockSpool:
    """The documents of one block on their way to a worker: on the disk, since 2048 books do not fit in a pipe.

    `path` is the block's name without a suffix; the result has `.parquet` and `.json` beside `.documents`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = 0
        self.bytes = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._stream = open_emptied(path.with_suffix(".documents"))

    def add(self, text: str) -> None:
        encoded = text.encode()
        self._digest.update(_LENGTH.pack(len(encoded)))
        self._digest.update(encoded)
        with naming(self.path):
            self._stream.write(_LENGTH.pack(len(encoded)))
            self._stream.write(encoded)
        self.documents += 1
        self.bytes += len(encoded)

    def close(self) -> None:
        with naming(self.path):
            self._stream.close()

    def finished_figures(self, names: tuple[str, ...]) -> dict[str, Any] | None:
        """The figures of this block, of these `names`, if an earlier run finished it from the same documents."""
        figures = read_or_none(self.path.with_suffix(".json"), dict[str, int | str])
        # An older longmix counted no words: what lacks a figure is packed again.
        is_whole = figures is not None and all(type(figures.get(name)) is int for name in names)
        is_there = is_whole and self.path.with_suffix(".parquet").is_file()
        return figures if is_there and figures.get("digest") == self.digest else None

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def remove(self) -> None:
        self.path.with_suffix(".documents").unlink(missing_ok=True)


# -----------------------------------------------------------------------------
# In a worker process: the tokenizer is loaded once, each block is one call.


_worker: dict[str, Any] = {}


def start_worker(settings: BlockSettings) -> None:
    """Initialise a worker process (or this one, if it does the work itself): load the tokenizer once."""
    if multiprocessing.parent_process() is not None:
        # Ctrl-C is the parent's to handle; and a worker whose parent was killed must not wait for it for ever.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=_leave_with_parent, daemon=True).start()
    if settings.native:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(settings.tokenizer) / MODEL))
        _worker["encode"] = lambda texts: processor.encode(texts, num_threads=1)
    else:
        tokenizer = load_tokenizer(settings.tokenizer)
        _worker["encode"] = lambda texts: encode(tokenizer, texts)
    _worker["settings"] = settings
    _worker["windows"] = None if settings.windows is None else held_out.Windows.load(Path(settings.windows))


def _leave_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def pack_block(path: str, digest: str) -> dict[str, Any]:
    """Encode and pack the spooled documents of one block into `path.parquet`; then write its figures to `path.json`.

    Figures: documents, empty_documents (no token left of them), bytes, words (between white space, of documents that
    have tokens), document_tokens, unknown_tokens, samples, tokens (with special tokens); and those of
    `held_out.FIGURES`, if they are asked for.
    """
    target = Path(path)
    settings: BlockSettings = _worker["settings"]
    windows: held_out.Windows | None = _worker["windows"]
    figures = dict.fromkeys(settings.figures, 0)
    packer = Packer(settings.sequence_length, settings.cls_id, settings.sep_id, settings.packing)
    file = ShardFile(target.with_suffix(".parquet"), COLUMNS)
    try:
        for texts in _batches(target.with_suffix(".documents")):
            for text, ids in zip(texts, _worker["encode"](texts), strict=True):
                figures["documents"] += 1
                figures["empty_documents"] += not ids
                figures["bytes"] += len(text.encode())
                figures["words"] += len(text.split()) if ids else 0
                figures["document_tokens"] += len(ids)
                if settings.unknown_id is not None:
                    figures["unknown_tokens"] += ids.count(settings.unknown_id)
                if windows is not None:
                    for name, figure in windows.figures(text).items():
                        figures[name] += figure
                figures["tokens"] += _write(file, packer.add(ids))
        figures["tokens"] += _write(file, packer.finish())
        figures["samples"] = file.close()["samples"]
    except BaseException:
        file.abandon()
        raise
    # There may be a hundred thousand blocks, and what a killed process left of one is removed before others are begun.
    write_json(target.with_suffix(".json"), {**figures, "digest": digest}, sweep=False)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target.with_suffix(".documents"))
    return figures


def _write(file: ShardFile, rows: list[Any]) -> int:
    for row in rows:
        file.write(row._asdict())
    return sum(len(row.input_ids) for row in rows)


def _batches(path: Path) -> Iterator[list[str]]:
    with open(path, "rb") as stream:
        texts: list[str] = []
        size = 0
        while header := stream.read(_LENGTH.size):
            texts.append(stream.read(_LENGTH.unpack(header)[0]).decode())
            size += len(texts[-1])
            if size >= _BATCH_BYTES:
                yield texts
                texts, size = [], 0
        if texts:
            yield texts


# -----------------------------------------------------------------------------
# Back in the parent: blocks, in their order, become shards.


def merge_blocks(paths: list[str], target: str) -> dict[str, Any]:
    """Copy the rows of the blocks `path.parquet`, in order, to one shard; returns its entry for the manifest."""
    shard = ShardFile(target, COLUMNS)
    try:
        for path in paths:
            with parquet_file(Path(path).with_suffix(".parquet")) as block:
                for index in range(block.num_row_groups):
                    shard.write_table(block.read_row_group(index).cast(shard.schema))
        return shard.close()
    except BaseException:
        shard.abandon()
        raise
