"""Encoding and packing: a stream of documents is cut into blocks, of which processes make token ids, in any order."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import MachineFault
from longmix.data_prep.text import blocks
from longmix.data_prep.text.blocks import BlockSettings, BlockSpool
from longmix.data_prep.text.held_out import HeldOut
from longmix.data_prep.text.state import WINDOWS, TextSettings
from longmix.data_prep.tokenizer import load_tokenizer, required_ids, sentencepiece_processor

Blocks = dict[str, dict[int, dict[str, Any]]]


class Encoder:
    """A tokenizer and the processes that use it."""

    def __init__(self, tokenizer: Path, settings: TextSettings, workers: int) -> None:
        self.tokenizer = load_tokenizer(tokenizer)
        self.ids = required_ids(self.tokenizer, tokenizer)
        self.workers = workers
        self.block_settings = BlockSettings(
            tokenizer=str(tokenizer),
            native=sentencepiece_processor(self.tokenizer) is not None,
            cls_id=self.ids["cls"],
            sep_id=self.ids["sep"],
            unknown_id=self.tokenizer.unk_token_id,
            sequence_length=settings.sequence_length,
            packing=settings.packing,
        )

    def pack(
        self,
        documents: Iterable[tuple[str, int, str]],
        folder: Path,
        advance: Callable[[int], None],
        held_out: HeldOut | None = None,
    ) -> Blocks:
        """Encode and pack documents into blocks in `folder`; the figures of each block, by split and number.

        A document is (split, its number in that split, text). Those of one split come in order; blocks that were begun
        are whole, but for the last one of a split. `advance` is told the bytes of what is finished. Passages of
        `held_out` are looked for by the processes that encode, since the one that reads is what all of them wait for.
        """
        if held_out is not None:
            held_out.windows().save(folder / WINDOWS)
            self.block_settings = dataclasses.replace(self.block_settings, windows=str(folder / WINDOWS))
        figures: Blocks = {}
        pending: dict[Future, tuple[str, int, BlockSpool]] = {}
        with self._executor() as executor:

            def collect(until: int) -> None:
                while len(pending) > until:
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        split, index, spool = pending.pop(future)
                        figures[split][index] = future.result()
                        advance(spool.bytes)

            for split, index, spool in _spools(documents, folder):
                figures.setdefault(split, {})
                done = spool.finished_figures(self.block_settings.figures)
                if done is not None:
                    figures[split][index] = done
                    spool.remove()
                    advance(spool.bytes)
                    continue
                future = executor.submit(blocks.pack_block, str(spool.path), spool.digest)
                pending[future] = (split, index, spool)
                collect(until=self.workers + 1)  # enough waiting to keep all busy, few enough for the disk
            collect(until=0)
        return figures

    @contextlib.contextmanager
    def _executor(self) -> Iterator[Executor]:
        if self.workers == 1:
            blocks.start_worker(self.block_settings)
            yield _Inline()
            return
        others = set(active_children())
        # Spawned, not forked: the parent may have threads.
        pool = ProcessPoolExecutor(self.workers, get_context("spawn"), blocks.start_worker, (self.block_settings,))
        try:
            # Ctrl-C reaches every process of a terminal: the workers learn to leave it to this one first.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pool.submit(int)  # the first task starts all of them
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield pool
        except BrokenProcessPool:
            raise MachineFault(
                "a worker process was killed, perhaps for want of memory: the same command goes on from here; "
                "give fewer --workers"
            ) from None
        except BaseException:
            for process in set(active_children()) - others:
                process.terminate()  # a block takes seconds: Ctrl-C does not wait for it, the next run repeats it
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def block_path(folder: Path, split: str, index: int) -> Path:
    """A block's name, without a suffix."""
    return folder / f"{split}-{index:06d}"


def _spools(documents: Iterable[tuple[str, int, str]], folder: Path) -> Iterator[tuple[str, int, BlockSpool]]:
    """The blocks of all splits, each as soon as it is full; the short ones at the end."""
    opened: dict[str, tuple[int, BlockSpool]] = {}
    for split, number, text in documents:
        if split not in opened:
            index = number // blocks.BLOCK_DOCUMENTS
            opened[split] = index, BlockSpool(block_path(folder, split, index))
        index, spool = opened[split]
        spool.add(text)
        if spool.documents == blocks.BLOCK_DOCUMENTS:
            del opened[split]
            spool.close()
            yield split, index, spool
    for split, (index, spool) in opened.items():
        spool.close()
        yield split, index, spool


class _Inline(Executor):
    """An executor with one worker, this process."""

    def submit(self, function: Callable, /, *arguments: Any, **keywords: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **keywords))
        return future
