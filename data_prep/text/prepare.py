"""From text to a tokenizer and packed data sets: `DIR/tokenizer`, `DIR/train`, `DIR/validation`, perhaps `DIR/test`.

The work is cut into blocks of documents that are packed alone; a finished block is never done again.
"""

import contextlib
import dataclasses
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longmix.data_prep.errors import MachineFault, UserError
from longmix.data_prep.files import locked, sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import SAMPLES_PER_SHARD, shard_name
from longmix.data_prep.text import blocks
from longmix.data_prep.text.blocks import BlockSettings, BlockSpool
from longmix.data_prep.text.documents import Rule
from longmix.data_prep.text.held_out import MOST, WINDOW_WORDS, HeldOut
from longmix.data_prep.text.reading import (
    HELD_OUT_RULE,
    LEFT_OUT_RULE,
    SPLIT_RULE,
    TRAINING_RULE,
    Document,
    FirstLook,
    Reader,
    read_held_out,
    take_first_look,
)
from longmix.data_prep.text.sources import Source, TextFile, find_sources, refuse_overlap
from longmix.data_prep.text.state import BLOCKS, State, TextSettings
from longmix.data_prep.tokenizer import (
    load_tokenizer,
    required_ids,
    save_tokenizer,
    sensible_vocabulary,
    sentencepiece_processor,
    train_tokenizer,
)

MAXIMUM_WORKERS = 4096
_MANY_PIECES = 2  # times what suits a text


@dataclass(frozen=True)
class Prepared:
    """The manifests of the splits; `was_there`: an earlier run had made them with the same settings."""

    train: Manifest
    validation: Manifest
    was_there: bool
    test: Manifest | None = None


def prepare_text(
    settings: TextSettings,
    output: str | Path,
    workers: int | None = None,
    show_progress: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Prepare `settings.source` in the folder `output`, or resume an interrupted run of the same settings.

    The splits of `settings.validation` and `settings.test` hold these texts whole, and the training split leaves out
    the documents that stand in them, by their text or title.

    `workers` processes (None: one per processor) encode and pack; the output does not depend on their number.
    `notify` is told in one line what begins. Raises `UserError` for every mistake in settings, sources or `output`;
    until the last moment no split has a manifest, so nothing unfinished passes for whole.
    """
    rule = settings.check()
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if not 1 <= workers <= MAXIMUM_WORKERS:
        raise UserError(f"--workers is {workers}: allowed are 1 to {MAXIMUM_WORKERS}")
    sources = find_sources(list(settings.source), settings.column, output, file_format=settings.format)
    others = {
        split: find_sources(list(names), settings.column, output, f"--{split}", settings.format)
        for split, names in (("validation", settings.validation), ("test", settings.test))
        if names
    }
    everything = [*sources, *(source for texts in others.values() for source in texts)]
    refuse_overlap(everything)
    folder = Path(output)
    with locked(folder):
        state = State.open(folder, settings, everything)
        if all((folder / split / "manifest.json").is_file() for split in settings.splits):
            state.remove_blocks()
            return Prepared(**{split: Manifest.load(folder / split) for split in settings.splits}, was_there=True)
        state.remove_unfinished()
        is_new = state.look is None
        try:
            held_out = read_held_out(others, rule)
            if is_new:
                _begin(state, settings, sources, rule, held_out, show_progress, notify)
            else:
                notify(f"going on with the unfinished preparation in {folder}")
        except BaseException:
            if is_new:
                state.forget()
            raise
        job = _Job(folder, settings, state.look, held_out, workers, show_progress)
        notify(f"encoding and packing ({workers} worker process{'es' if workers > 1 else ''})")
        reader = Reader(sources, rule, held_out=held_out)
        figures = job.pack(reader, {split: Reader(texts, rule) for split, texts in others.items()})
        try:
            job.require_samples(figures)
        except UserError:
            state.forget()  # the same settings would make no more of it: the folder is free for other ones
            raise
        manifests = job.finish(reader, figures)
        state.remove_blocks()
    return Prepared(**manifests, was_there=False)


def _begin(
    state: State,
    settings: TextSettings,
    sources: list[Source],
    rule: Rule,
    held_out: HeldOut | None,
    show_progress: bool,
    notify: Callable[[str], None],
) -> None:
    """First look at the sources, and the tokenizer: what the blocks need. Then the state is saved."""
    target = state.folder / "tokenizer"
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(settings.tokenizer)
        required_ids(tokenizer, settings.tokenizer)
    notify(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
    parts = [part for source in sources for part in source.parts]
    total = sum(part.path.stat().st_size for part in parts) if all(isinstance(p, TextFile) for p in parts) else None
    with _bar("reading", total, show_progress) as bar:
        look = take_first_look(sources, rule, settings.tokenizer is None, bar.update, held_out=held_out)
    for source, counts in zip(sources, look.counts, strict=True):
        guessed = any(getattr(part, "by_content", False) for part in source.parts)
        notify(f"{source}: {counts.describe()}{' (if that is wrong: --format)' if guessed else ''}")
    if settings.tokenizer is not None:
        save_tokenizer(tokenizer, target)
    else:
        suits = sensible_vocabulary(sum(len(text.encode()) for text in look.sample))
        size = settings.vocab_size if settings.vocab_size is not None else suits
        characters = f"{sum(map(len, look.sample)) / 1e6:.1f} million characters"
        if size > _MANY_PIECES * suits:
            notify(
                f"--vocab-size {size} is more than {characters} can teach: if they hold so many pieces, most of them "
                f"stand there a few times only; {suits} or fewer suit this text (without --vocab-size it decides)"
            )
        notify(f"training a tokenizer of {size} pieces on {characters}")
        is_default = settings.vocab_size is None
        train_tokenizer(look.sample, target, size, settings.uncased, settings.sequence_length, is_default)
    state.look = dataclasses.replace(look, sample=[], counts=[])
    state.save()


# -----------------------------------------------------------------------------
# The work. Blocks are cut in the order of the documents and merged in that order, so the output is the same for any
# number of workers.


class _Job:
    """Cuts the stream of documents into blocks, hands them to the workers and gathers the figures."""

    def __init__(
        self,
        folder: Path,
        settings: TextSettings,
        look: FirstLook,
        held_out: HeldOut | None,
        workers: int,
        show_progress: bool,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.look = look
        self.held_out = held_out
        self.overlapping = {"words": WINDOW_WORDS, "some": 0, "most": 0}
        self.workers = workers
        self.show_progress = show_progress
        self.tokenizer = load_tokenizer(folder / "tokenizer")
        ids = required_ids(self.tokenizer, folder / "tokenizer")
        self.ids = ids
        self.block_settings = BlockSettings(
            tokenizer=str(folder / "tokenizer"),
            native=sentencepiece_processor(self.tokenizer) is not None,
            cls_id=ids["cls"],
            sep_id=ids["sep"],
            unknown_id=self.tokenizer.unk_token_id,
            sequence_length=settings.sequence_length,
            packing=settings.packing,
        )

    def pack(self, reader: Reader, others: dict[str, Reader]) -> dict[str, list[dict[str, Any]]]:
        """Encode and pack the sources, and the `others` that are splits; the figures of the blocks of each split."""
        figures: dict[str, list[dict[str, Any]]] = {split: [] for split in self.settings.splits}
        pending: dict[Future, tuple[str, int, BlockSpool]] = {}
        total = self.look.bytes
        if total is not None and self.held_out is not None:
            total += self.held_out.bytes
        with self._executor() as executor, _bar("encoding", total, self.show_progress) as bar:

            def collect(until: int) -> None:
                while len(pending) > until:
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        split, index, spool = pending.pop(future)
                        figures[split][index] = future.result()
                        bar.update(spool.bytes)

            for split, spool in self._spools(self._documents(reader, others)):
                done = spool.finished_figures()
                figures[split].append(done)
                if done is not None:
                    spool.remove()
                    bar.update(spool.bytes)
                    continue
                future = executor.submit(blocks.pack_block, str(spool.path), spool.digest)
                pending[future] = (split, len(figures[split]) - 1, spool)
                collect(until=self.workers + 1)  # enough waiting to keep all busy, few enough for the disk
            collect(until=0)
        return figures

    def _documents(self, reader: Reader, others: dict[str, Reader]) -> Iterator[tuple[str, Document]]:
        for document in reader:
            split = "validation" if document.digest < self.look.threshold else "train"
            if self.held_out is not None and split == "train":
                share = self.held_out.overlap(document.text)
                self.overlapping["some"] += share > 0
                self.overlapping["most"] += share >= MOST
            yield split, document
        for split, whole in others.items():
            for document in whole:
                yield split, document

    def _spools(self, documents: Iterator[tuple[str, Document]]) -> Iterator[tuple[str, BlockSpool]]:
        """The blocks of all splits, each as soon as it is full; the short ones at the end."""
        opened: dict[str, BlockSpool] = {}
        counts = dict.fromkeys(self.settings.splits, 0)
        for split, document in documents:
            if split not in opened:
                opened[split] = BlockSpool(self._block_path(split, counts[split]))
                counts[split] += 1
            opened[split].add(document.text)
            if opened[split].documents == blocks.BLOCK_DOCUMENTS:
                opened[split].close()
                yield split, opened.pop(split)
        for split in [split for split in self.settings.splits if split in opened]:
            opened[split].close()
            yield split, opened[split]

    def _block_path(self, split: str, index: int) -> Path:
        return self.folder / BLOCKS / f"{split}-{index:06d}"

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

    def require_samples(self, figures: dict[str, list[dict[str, Any]]]) -> None:
        """Raise `UserError` if a split is empty."""
        for split in self.settings.splits:
            if not _sum(figures[split])["samples"]:
                raise UserError(f"the {split} split is empty: no token is left of its documents; give more text")

    def finish(self, reader: Reader, figures: dict[str, list[dict[str, Any]]]) -> dict[str, Manifest]:
        """Merge the blocks into shards, then write the manifests of all splits."""
        totals = {split: _sum(figures[split]) for split in self.settings.splits}
        report = self._report(reader, totals)
        tokenizer_hash = sha256_of_folder(self.folder / "tokenizer")
        manifests = {}
        for split in self.settings.splits:
            (self.folder / split).mkdir(exist_ok=True)
            shards = []
            for index, members in enumerate(_groups(figures[split])):
                paths = [str(self._block_path(split, member)) for member in members]
                shards.append(blocks.merge_blocks(paths, str(self.folder / split / shard_name(index))))
            manifests[split] = Manifest(
                split=split,
                split_rule=self._split_rule(),
                samples=totals[split]["samples"],
                tokens=totals[split]["tokens"],
                words=totals[split]["words"],
                columns=blocks.COLUMNS,
                vocab_size=len(self.tokenizer),
                pad_token_id=self.ids["pad"],
                mask_token_id=self.ids["mask"],
                special_token_ids=sorted(self.tokenizer.all_special_ids),
                tokenizer={"path": "../tokenizer", "sha256": tokenizer_hash},
                sequence_length=self.settings.sequence_length,
                packing=self.settings.packing,
                shards=shards,
                report=report,
            )
        for split, manifest in manifests.items():
            manifest.save(self.folder / split)
        return manifests

    def _split_rule(self) -> str:
        whole = [HELD_OUT_RULE.format(split=split) for split in ("validation", "test") if getattr(self.settings, split)]
        cut = [SPLIT_RULE.format(threshold=self.look.threshold), *([LEFT_OUT_RULE] if self.settings.test else [])]
        return "; ".join([*([TRAINING_RULE] if self.settings.validation else cut), *whole])

    def _report(self, reader: Reader, totals: dict[str, dict[str, int]]) -> dict[str, Any]:
        splits = {}
        for split, total in totals.items():
            capacity = total["samples"] * self.settings.sequence_length
            ends = total["documents"] - total["empty_documents"]
            kept = total["tokens"] - total["samples"] - ends  # without [CLS] and [SEP]
            splits[split] = {
                **total,
                "tokens_kept": kept / total["document_tokens"],
                "padding": 1 - total["tokens"] / capacity,
                "bytes_per_token": total["bytes"] / total["document_tokens"],
                "unknown": total["unknown_tokens"] / total["document_tokens"],
            }
        report = {
            "sources": [
                {"source": source.name, "files": len(source.parts), **dataclasses.asdict(count)}
                for source, count in zip(reader.sources, reader.counts, strict=True)
            ],
            "splits": splits,
        }
        if self.held_out is not None:
            left_out = {name: sum(counts[name] for counts in reader.left_out) for name in reader.left_out[0]}
            report["held_out"] = {"left_out": left_out, "validation_in_test": self.held_out.validation_in_test}
            # Told, and trained on all the same: which of them are leaks, only a reader can say.
            report["held_out"]["overlapping"] = self.overlapping
        return report


class _Inline(Executor):
    """An executor with one worker, this process."""

    def submit(self, function: Callable, /, *arguments: Any, **keywords: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **keywords))
        return future


# -----------------------------------------------------------------------------
# Figures of blocks: those of blocks that an earlier run finished come from their files.


def _sum(figures: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(block[name] for block in figures) for name in blocks.FIGURES}


def _groups(figures: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Runs of neighbouring blocks that make a shard of SAMPLES_PER_SHARD samples, or a little more."""
    members: deque[int] = deque()
    samples = 0
    for index, block in enumerate(figures):
        members.append(index)
        samples += block["samples"]
        if samples >= SAMPLES_PER_SHARD:
            yield list(members)
            members.clear()
            samples = 0
    if samples:
        yield list(members)


def _bar(name: str, total: int | None, show: bool) -> tqdm:
    return tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=not show, dynamic_ncols=True)
