"""`longmix prepare text --share I/N`: one preparation on many hosts, whose output is that of one host to the byte.

1. Count: each share reads files of its own. 2. Plan: share 0 adds the counts up, and trains the tokenizer. 3. Pack:
each share encodes and packs blocks of its own; what is one block follows from the counts. 4. Write: each share merges
the blocks of its shards. 5. Share 0 writes the manifests. Between the stages a share waits for the others.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import locked, make_folder, write_json
from longmix.data_prep.made_files import remove_files
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import shard_name
from longmix.data_prep.split_names import TRAIN
from longmix.data_prep.state_files import read_state
from longmix.data_prep.text import blocks
from longmix.data_prep.text.encoding import Blocks, Encoder, block_path
from longmix.data_prep.text.first_look import FirstLook, conclude
from longmix.data_prep.text.manifests import Totals, shard_members, totals_of, write_manifests
from longmix.data_prep.text.parts import HubDataset
from longmix.data_prep.text.prepare import Prepared, Sources, bar, check_tokenizer, conclude_look, number_of_workers
from longmix.data_prep.text.share_counts import Counted, Files, Piece, Plan, add_up, write_sample
from longmix.data_prep.text.shares import ANEW, Share, ShareFolder
from longmix.data_prep.text.state import TEMPORARY, State, TextSettings, require_empty

COUNTED, PLAN, PACKED, WRITTEN = (Path(f"{name}.json") for name in ("counted", "plan", "packed", "written"))
_SAMPLE = "sample"


@dataclass
class _Packed:
    """packed.json of a share: the figures of its blocks, in order, and of documents that share passages."""

    figures: dict[str, list[dict[str, int]]]
    overlapping: dict[str, int]


@dataclass
class _Written:
    """written.json of a share: the entries of its shards, in order."""

    shards: dict[str, list[dict[str, Any]]]


def prepare_share(
    settings: TextSettings,
    output: str | Path,
    share: Share,
    workers: int | None = None,
    show_progress: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Prepared | None:
    """Do one share of `prepare_text` in the folder `output`, or go on with it. Share 0 returns what was prepared.

    Raises:
        UserError: as `prepare_text`; the shares do not agree; another share has failed.
        Unfinished: this share waits for others of which nothing is heard.
    """
    texts = Sources.find(settings, output)
    workers = number_of_workers(workers)
    for source in texts.everything:
        if any(isinstance(part, HubDataset) for part in source.parts):
            raise UserError(f"--share needs files: {source} is streamed; download it, or leave --share out")
    folder = Path(output)
    if settings.is_made(folder):
        return _was_there(folder, settings, texts, share, notify)
    shares = ShareFolder(folder, share, notify)
    make_folder(folder)
    if not shares.root.is_dir():
        if (folder / "prepare.json").is_file():
            raise UserError(
                f"--output {folder} holds a preparation that was begun without --share: go on without it, or choose "
                "another folder"
            )
        require_empty(folder)
    job = _Job(folder, settings, texts, shares, workers, show_progress, notify)
    shares.agree(settings.values(), settings.tokenizer_hash(), job.files.listing())
    with shares.held():
        job.count()
        job.make_plan()
        job.pack()
        job.write()
        if share.index:
            notify(f"share {share} is done; share 0/{share.count} writes the manifests")
            return None
        prepared = job.finish()
        shares.remove()
    return prepared


def _was_there(
    folder: Path, settings: TextSettings, texts: Sources, share: Share, notify: Callable[[str], None]
) -> Prepared | None:
    if share.index:
        notify(f"{folder} was prepared before: share {share} has nothing to do")
        return None
    with locked(folder):
        State.open(folder, settings, texts.everything)
    # Where the last command was killed between the manifests and this.
    ShareFolder(folder, share, notify).remove()
    return Prepared(**{split: Manifest.load(folder / split) for split in settings.splits}, was_there=True)


class _Job:
    """The stages of one share. Each leaves a record in the share's folder when it is finished."""

    def __init__(
        self,
        folder: Path,
        settings: TextSettings,
        texts: Sources,
        shares: ShareFolder,
        workers: int,
        show_progress: bool,
        notify: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.texts = texts
        self.shares = shares
        self.share = shares.share
        self.workers = workers
        self.show_progress = show_progress
        self.notify = notify
        self.files = Files(texts)

    def count(self) -> None:
        """Stage 1."""
        if (self.shares.own / COUNTED).is_file():
            return
        check_tokenizer(self.settings)
        own = self.files.of_share(self.share)
        self.notify(f"share {self.share}: counting {len(own)} of {len(self.files.pieces)} files")
        is_compressed = any(self.files.pieces[index].part.compressed for index in own)
        total = None if is_compressed else sum(self.files.sizes[index] for index in own)
        with bar("counting", total, self.show_progress) as shown:
            counted, sample = self.files.count(own, self.settings.tokenizer is None, shown.update)
        write_sample(self.shares.own / _SAMPLE, sample)
        write_json(self.shares.own / COUNTED, dataclasses.asdict(counted))

    def make_plan(self) -> None:
        """Stage 2, which share 0 does and the others wait for."""
        first = Share(0, self.share.count)
        if self.share != first:
            self.shares.wait_for([first], PLAN, "made the plan")
        elif not (self.shares.own / PLAN).is_file():
            self.shares.wait_for(self.share.all(), COUNTED, "counted")
            self._plan()
        self.plan: Plan = self._read(first, PLAN, Plan)
        self.look = FirstLook(self.plan.threshold, None, None, [])
        self.totals = Counter()
        for documents in self.plan.documents:
            self.totals.update(documents)

    def _plan(self) -> None:
        """Add the counts up, make the tokenizer, write prepare.json and then plan.json."""
        counted = [self._read(share, COUNTED, Counted) for share in self.share.all()]
        reader = self.files.read_reader(counted)
        samples = [self.shares.of(share) / _SAMPLE for share in self.share.all()]
        look = conclude(add_up(counted, samples, self.settings.tokenizer is None), reader)
        plan = self.files.plan(counted, look)
        found = iter(plan.fingerprints)
        sources = [[source.name, *(next(found) for _ in source.parts)] for source in self.texts.everything]
        state = State(self.folder, self.settings.values(), sources, self.settings.tokenizer_hash(), None)
        conclude_look(state, self.settings, self.texts.sources, look, self.notify)
        write_json(self.shares.own / PLAN, dataclasses.asdict(plan))

    def _read(self, share: Share, record: Path, schema: type) -> Any:
        return read_state(self.shares.of(share) / record, schema, ANEW)

    def pack(self) -> None:
        """Stage 3."""
        if (self.shares.own / PACKED).is_file():
            return
        own = {split: self._blocks_of(self.share, split) for split in self.settings.splits}
        number = sum(map(len, own.values()))
        self.notify(f"share {self.share}: encoding and packing {number} blocks ({self.workers} worker processes)")
        figures: Blocks = {}
        if number:
            encoder = Encoder(self.folder / "tokenizer", self.settings, self.workers)
            with bar("encoding", None, self.show_progress) as shown:
                figures = encoder.pack(self._documents(own), self.shares.own, shown.update, self.files.held_out)
        for split, indices in own.items():
            if sorted(figures.get(split, {})) != list(indices):
                raise UserError(f"the sources have changed since they were counted: {ANEW}")
        kept = {
            split: [{name: figures[split][index][name] for name in blocks.FIGURES} for index in indices]
            for split, indices in own.items()
        }
        if self.files.held_out is not None:
            self.files.held_out.sum_up(figures.get(TRAIN, {}).values())
        overlapping = self.files.held_out.overlapping if self.files.held_out is not None else {}
        write_json(self.shares.own / PACKED, dataclasses.asdict(_Packed(kept, overlapping)))

    def _blocks_of(self, share: Share, split: str) -> range:
        return share.range(-(-self.totals[split] // blocks.BLOCK_DOCUMENTS))

    def _documents(self, own: dict[str, range]) -> Iterator[tuple[str, int, str]]:
        """(split, number in it, text) of the documents of these blocks, from the files that hold them."""
        size = blocks.BLOCK_DOCUMENTS
        wanted = {split: range(indices.start * size, indices.stop * size) for split, indices in own.items() if indices}
        for index, piece in enumerate(self.files.pieces):
            if piece.split is not None:
                self.files.require_unchanged(index, self.plan)
        counts: Counter[str] = Counter()
        for index, piece in enumerate(self.files.pieces):
            ends = counts + Counter(self.plan.documents[index])
            if any(max(counts[split], own.start) < min(ends[split], own.stop) for split, own in wanted.items()):
                if piece.split is None:
                    self.files.require_unchanged(index, self.plan)
                yield from self._documents_of(piece, counts.copy(), wanted)
            counts = ends

    def _documents_of(self, piece: Piece, counts: Counter, wanted: dict[str, range]) -> Iterator[tuple[str, int, str]]:
        for whole, document in piece.documents(self.files.reader(piece)):
            split = whole or self.look.split_of(document)
            number = counts[split]
            counts[split] += 1
            if number in wanted.get(split, ()):
                yield split, number, document.text
            elif all(counts[split] >= numbers.stop for split, numbers in wanted.items()):
                return

    def write(self) -> None:
        """Stage 4."""
        self.shares.wait_for(self.share.all(), PACKED, "packed")
        packed = [(share, self._read(share, PACKED, _Packed)) for share in self.share.all()]
        self.overlapping = [one.overlapping for _, one in packed]
        owners: dict[tuple[str, int], Share] = {}
        figures: Blocks = {split: {} for split in self.settings.splits}
        for share, one in packed:
            for split, entries in one.figures.items():
                for index, block in zip(self._blocks_of(share, split), entries, strict=True):
                    figures[split][index] = block
                    owners[split, index] = share
        self.sums: Totals = totals_of(figures, self.settings.splits)
        if (self.shares.own / WRITTEN).is_file():
            return
        shards = [
            (split, number, members)
            for split in self.settings.splits
            for number, members in enumerate(shard_members(figures[split]))
        ]
        own = self.share.range(len(shards))
        self.notify(f"share {self.share}: writing {len(own)} of {len(shards)} shards")
        entries: dict[str, list[dict[str, Any]]] = {split: [] for split in self.settings.splits}
        for split, number, members in (shards[index] for index in own):
            (self.folder / split).mkdir(exist_ok=True)
            paths = [str(block_path(self.shares.of(owners[split, index]), split, index)) for index in members]
            entries[split].append(blocks.merge_blocks(paths, str(self.folder / split / shard_name(number))))
        write_json(self.shares.own / WRITTEN, dataclasses.asdict(_Written(entries)))

    def finish(self) -> Prepared:
        """Write the manifests: of share 0, when all shards are there."""
        self.shares.wait_for(self.share.all(), WRITTEN, "written its shards")
        shards: dict[str, list[dict[str, Any]]] = {split: [] for split in self.settings.splits}
        counted = [self._read(share, COUNTED, Counted) for share in self.share.all()]
        for share in self.share.all():
            for split, entries in self._read(share, WRITTEN, _Written).shards.items():
                shards[split] += entries
        reader = self.files.read_reader(counted)
        if self.files.held_out is not None:
            for name in ("some", "most"):
                self.files.held_out.overlapping[name] = sum(overlapping[name] for overlapping in self.overlapping)
        for split in self.settings.splits:
            remove_files(self.folder / split, TEMPORARY)
        encoder = Encoder(self.folder / "tokenizer", self.settings, self.workers)
        manifests = write_manifests(
            self.folder, self.settings, self.plan.threshold, encoder, reader, self.files.held_out, self.sums, shards
        )
        return Prepared(**manifests, was_there=False)
