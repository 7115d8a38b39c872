"""From text to a tokenizer and packed data sets: `DIR/tokenizer`, `DIR/train`, `DIR/validation`, perhaps `DIR/test`.

The work is cut into blocks of documents that are packed alone; a finished block is never done again.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import locked
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import shard_name
from longmix.data_prep.split_names import TRAIN
from longmix.data_prep.text import blocks
from longmix.data_prep.text.documents import Rule
from longmix.data_prep.text.encoding import Blocks, Encoder, block_path
from longmix.data_prep.text.first_look import FirstLook, take_first_look
from longmix.data_prep.text.held_out import HeldOut
from longmix.data_prep.text.manifests import shard_members, totals_of, write_manifests
from longmix.data_prep.text.parts import HubDataset, TextFile
from longmix.data_prep.text.reading import Reader, read_held_out
from longmix.data_prep.text.shares import FOLDER as SHARES
from longmix.data_prep.text.sources import Source, find_sources, refuse_overlap
from longmix.data_prep.text.state import BLOCKS, State, TextSettings
from longmix.data_prep.tokenizer import (
    frames_texts,
    load_tokenizer,
    required_ids,
    save_tokenizer,
    sensible_vocabulary,
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


@dataclass(frozen=True)
class Sources:
    """The texts that settings name: `sources`, `others` that are splits, and the rule for documents."""

    sources: list[Source]
    others: dict[str, list[Source]]
    rule: Rule

    @classmethod
    def find(cls, settings: TextSettings, output: str | Path) -> "Sources":
        """Raises `UserError` for every mistake in settings, and for texts that are not there."""
        rule = settings.check()
        sources = find_sources(list(settings.source), settings.column, output, file_format=settings.format)
        others = {
            split: find_sources(list(names), settings.column, output, f"--{split}", settings.format)
            for split, names in (("validation", settings.validation), ("test", settings.test))
            if names
        }
        found = cls(sources, others, rule)
        refuse_overlap(found.everything)
        return found

    @property
    def everything(self) -> list[Source]:
        return [*self.sources, *(source for texts in self.others.values() for source in texts)]


def number_of_workers(workers: int | None) -> int:
    """As given, or one per processor. Raises `UserError`."""
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if not 1 <= workers <= MAXIMUM_WORKERS:
        raise UserError(f"--workers is {workers}: allowed are 1 to {MAXIMUM_WORKERS}")
    return workers


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
    texts = Sources.find(settings, output)
    sources, others, rule = texts.sources, texts.others, texts.rule
    workers = number_of_workers(workers)
    folder = Path(output)
    with locked(folder):
        if (folder / SHARES).is_dir() and not settings.is_made(folder):
            raise UserError(
                f"--output {folder} is being prepared in shares: give --share I/N, or choose another folder"
            )
        state = State.open(folder, settings, texts.everything)
        if settings.is_made(folder):
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
        notify(f"encoding and packing ({workers} worker process{'es' if workers > 1 else ''})")
        encoder = Encoder(folder / "tokenizer", settings, workers)
        reader = Reader(sources, rule, held_out=held_out)
        documents = _numbered(reader, {split: Reader(texts, rule) for split, texts in others.items()}, state.look)
        total = state.look.bytes
        if total is not None and held_out is not None:
            total += held_out.bytes
        with bar("encoding", total, show_progress) as shown:
            figures = encoder.pack(documents, folder / BLOCKS, shown.update, held_out)
        if held_out is not None:
            held_out.sum_up(figures.get(TRAIN, {}).values())
        try:
            totals = totals_of(figures, settings.splits)
        except UserError:
            state.forget()  # the same settings would make no more of it: the folder is free for other ones
            raise
        shards = _write_shards(folder, settings.splits, figures)
        manifests = write_manifests(folder, settings, state.look.threshold, encoder, reader, held_out, totals, shards)
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
    check_tokenizer(settings)
    notify(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
    parts = [part for source in sources for part in source.parts]
    is_plain = all(isinstance(part, TextFile) and not part.compressed for part in parts)
    total = sum(part.path.stat().st_size for part in parts) if is_plain else None
    with bar("reading", total, show_progress) as shown:
        look = take_first_look(sources, rule, settings.tokenizer is None, shown.update, held_out=held_out)
    conclude_look(state, settings, sources, look, notify)


def check_tokenizer(settings: TextSettings) -> None:
    """Raise `UserError` if the tokenizer that is to be used cannot be: before the long work."""
    if settings.tokenizer is not None:
        required_ids(load_tokenizer(settings.tokenizer), settings.tokenizer)


def conclude_look(
    state: State, settings: TextSettings, sources: list[Source], look: FirstLook, notify: Callable[[str], None]
) -> None:
    """Tell what was found, save the tokenizer, or train it, and then the state. Raises `UserError`."""
    for source, counts in zip(sources, look.counts, strict=True):
        guessed = any(getattr(part, "by_content", False) for part in source.parts)
        empty = sum(not isinstance(part, HubDataset) and part.is_empty() for part in source.parts)
        note = f"; {empty} of {len(source.parts)} files are empty" if empty else ""
        notify(f"{source}: {counts.describe()}{' (if that is wrong: --format)' if guessed else ''}{note}")
    target = state.folder / "tokenizer"
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(settings.tokenizer)
        if not frames_texts(tokenizer):
            notify(
                f"samples begin with {tokenizer.cls_token} and documents end with {tokenizer.sep_token}, which the "
                f"tokenizer in {settings.tokenizer} leaves out when it is called: fine-tuning and predictions would "
                "read texts without them; give it a post-processor (TemplateProcessing of the package tokenizers)"
            )
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


def _numbered(reader: Reader, others: dict[str, Reader], look: FirstLook) -> Iterator[tuple[str, int, str]]:
    """(split, number in it, text) of every document of the sources, and of the `others`, which are splits."""
    counts: Counter[str] = Counter()
    for document in reader:
        split = look.split_of(document)
        yield split, counts[split], document.text
        counts[split] += 1
    for split, whole in others.items():
        for number, document in enumerate(whole):
            yield split, number, document.text


def _write_shards(folder: Path, splits: tuple[str, ...], figures: Blocks) -> dict[str, list[dict[str, Any]]]:
    """Merge the blocks into shards; the entries of each split's manifest."""
    shards: dict[str, list[dict[str, Any]]] = {}
    for split in splits:
        (folder / split).mkdir(exist_ok=True)
        shards[split] = []
        for index, members in enumerate(shard_members(figures[split])):
            paths = [str(block_path(folder / BLOCKS, split, member)) for member in members]
            shards[split].append(blocks.merge_blocks(paths, str(folder / split / shard_name(index))))
    return shards


def bar(name: str, total: int | None, show: bool) -> tqdm:
    """A progress bar of bytes."""
    return tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=not show, dynamic_ncols=True)
