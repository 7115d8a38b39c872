"""The data sets of a run, checked against each other before anything is built."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest, fingerprint
from longmix.data_prep.split_names import TEST

from ..settings.configuration import RunConfiguration
from ..settings.mistakes import Mistakes
from ..settings.sections import EARLIER_ORDER
from ..settings.shuffling import SMALLEST_DEFAULT_PARTITIONS, settled
from .collate import SECOND, TOKEN_IDS, VALUES, count_positions
from .dataset import ShardedDataset
from .length_groups import LengthGroupedOrder
from .order import RunOrder
from .shard_check import COORDINATES
from .windows import Dataset, as_seen, characters_of, scales

# Fields of the manifest that data sets of one run must have in common.
_COMMON = (
    "vocab_size",
    "pad_token_id",
    "mask_token_id",
    "num_labels",
    "label_names",
    "tolerance",
    "trained_places",
)
# Columns that models read, in which they must agree too.
_INPUTS = (TOKEN_IDS, VALUES, COORDINATES, TOKEN_IDS + SECOND, VALUES + SECOND, COORDINATES + SECOND)


@dataclass
class RunData:
    """Training sources with their order, and the evaluation and test sets."""

    train: list[Dataset]
    order: RunOrder
    evaluation: Dataset | None
    test: Dataset | None

    def all(self) -> list[Dataset]:
        """Every data set of the run, the first source first."""
        return [*self.train, *(dataset for dataset in (self.evaluation, self.test) if dataset is not None)]

    @property
    def manifest(self) -> Manifest:
        """The first source's: it speaks for all in what `_COMMON` names."""
        return self.train[0].manifest

    def fingerprints(self) -> dict[str, list[str]]:
        """Hashes of each data set's contents by key of the run file: the same whenever and wherever it lies."""
        named = {"data.train": self.train, "data.eval": [self.evaluation], "data.test": [self.test]}
        return {
            key: [fingerprint(dataset.stored) for dataset in datasets if dataset is not None]
            for key, datasets in named.items()
        }

    @property
    def tokens_per_sample(self) -> float:
        tokens = sum(data.manifest.tokens or 0 for data in self.train)
        return tokens / sum(len(data) for data in self.train)


# Opening: every data set of a run is opened, and every mistake noted, before the first is told.


def open_data(configuration: RunConfiguration, world_size: int = 1) -> RunData:
    """Open every data set of a run that is shared by so many processes.

    Raises:
        UserError: a data set is missing or incomplete, two differ in vocabulary, tokenizer or labels, or a checkpoint
            would be chosen on the test set.
    """
    section = configuration.data
    sources = section.sources()
    opened = {}
    window = settled(section, configuration.batch).window
    ranges = _ranges_by_path(configuration, world_size)
    mistakes = Mistakes()
    paths = dict.fromkeys([*(source.path for source in sources), section.eval, section.test])
    paths.pop(None, None)
    for path in paths:
        with mistakes:
            held = (ranges.get(path, 0), window)  # what is read for evaluation alone has no ranges
            opened[path] = as_seen(ShardedDataset(path, section.cache, *held, len(paths)), configuration.objective)
    for path, dataset in opened.items():
        with mistakes:
            _refuse_other_kind(path, dataset.manifest, *next(iter(opened.items())))
    with mistakes:
        _refuse_selection_on_test(configuration, opened)
    mistakes.tell()
    train = [opened[source.path] for source in sources]
    return RunData(train, _order(configuration, train), opened.get(section.eval), opened.get(section.test))


def _ranges_of_rank(configuration: RunConfiguration, world_size: int) -> int:
    """Of how many ranges of the samples a rank reads in turn, at most; see RunOrder.share_of_rank."""
    section = settled(configuration.data, configuration.batch)
    is_mixed = len(section.sources()) > 1
    if configuration.batch.group_by_length or (is_mixed and section.order == EARLIER_ORDER):
        return section.partitions
    # Where one source ends and the next begins may change by one from batch to batch.
    return -(-section.partitions // world_size) + (3 if is_mixed else 1)


def _ranges_by_path(configuration: RunConfiguration, world_size: int) -> dict[str, int]:
    """The same for each training set; see DealtMixture.ranges."""
    section, ranges = settled(configuration.data, configuration.batch), _ranges_of_rank(configuration, world_size)
    sources = section.sources()
    if len(sources) == 1 or section.order == EARLIER_ORDER:
        return {source.path: ranges for source in sources}
    by_path, weights = Counter(), sum(source.weight for source in sources)
    for source in sources:
        own = math.ceil(section.partitions * source.weight / weights) + 1
        by_path[source.path] += max(SMALLEST_DEFAULT_PARTITIONS, min(own, ranges))
    return by_path


def small_cache_note(configuration: RunConfiguration, data: RunData, world_size: int, ranks_here: int) -> str | None:
    """A line if copies of the shards that this machine's ranks read at a time do not fit into its cache; else None."""
    remote = [source for source in data.train if isinstance(source, ShardedDataset) and source.cache_room is not None]
    if not remote:
        return None
    ranges = min(data.order.partitions, ranks_here * _ranges_of_rank(configuration, world_size))
    sizes = sorted((shard["bytes"] for source in remote for shard in source.manifest.shards), reverse=True)
    needed, room = sum(sizes[:ranges]), remote[0].cache_room
    if needed <= room:
        return None
    return (
        f"note: this machine reads {ranges} ranges of the samples at a time, whose shards take {needed / 1e9:,.3g} GB, "
        f"and the cache has room for {max(room, 0) / 1e9:,.3g} GB: shards will be fetched again and again; raise "
        "data.cache.max_bytes, or name a larger disk (data.cache.dir)"
    )


def _order(configuration: RunConfiguration, train: list[Dataset]) -> RunOrder:
    batch = configuration.batch
    section = settled(configuration.data, batch)
    arguments = (
        [len(dataset) for dataset in train],
        [source.weight for source in section.sources()],
        section.partitions,
        section.window,
        configuration.run.seed,
    )
    if not batch.group_by_length:
        return RunOrder(*arguments, section.order)

    def lengths(source: int, samples: np.ndarray) -> np.ndarray:
        train[source].fetch(samples)
        return np.asarray([count_positions(sample) for sample in train[source].read(samples)])

    return LengthGroupedOrder(*arguments, batch.samples, lengths, section.order)


# Checks of the data sets against each other: a model reads them all with one vocabulary, one width and one meaning, and
# figures are reported on samples that have chosen nothing.


def _refuse_selection_on_test(configuration: RunConfiguration, opened: dict[str, Dataset]) -> None:
    """Raise UserError if the test set, which figures are reported on, also chooses a checkpoint or trains it."""
    section = configuration.data
    chooses = opened.get(section.eval) if configuration.checkpoint.best is not None else None
    if chooses is not None and chooses.manifest.split == TEST:
        raise UserError(
            f"data.eval is {section.eval}, a test split, on which checkpoint.best would choose: name the validation "
            "split, and the test split as data.test"
        )
    if section.test not in opened:
        return
    held_out = _contents(opened[section.test])
    used = {source.path: "data.train" for source in section.sources()}
    used |= {section.eval: "data.eval"} if section.eval is not None else {}
    for path, key in used.items():
        if path in opened and held_out & _contents(opened[path]):
            raise UserError(
                f"data.test is {section.test}, which holds the samples of {key}, {path}: name another split"
            )


def _contents(dataset: Dataset) -> set[str]:
    return {shard["sha256"] for shard in dataset.manifest.shards}


def _refuse_other_kind(path: str, manifest: Manifest, first_path: str, first: Dataset) -> None:
    for name in _COMMON:
        ours, theirs = getattr(first.manifest, name), getattr(manifest, name)
        if ours != theirs:
            raise UserError(f"{path} has {name} {theirs}, but {first_path} has {ours}: prepare them together")
    theirs, ours = _inputs(manifest), _inputs(first.manifest)
    if theirs != ours:
        raise UserError(f"{path} has the inputs {theirs}, but {first_path} has {ours}: prepare them together")
    if scales(first.manifest) != scales(manifest):
        raise UserError(
            f"{path} holds other variables than {first_path}, or standardised otherwise: prepare them together"
        )
    if characters_of(first.manifest) != characters_of(manifest):
        raise UserError(f"{path} numbers other characters than {first_path}: prepare them together")
    if (first.manifest.tokenizer or {}).get("sha256") != (manifest.tokenizer or {}).get("sha256"):
        raise UserError(
            f"{path} was made with another tokenizer than {first_path}: "
            "prepare it with that tokenizer (longmix prepare text --tokenizer)"
        )


def _inputs(manifest: Manifest) -> str:
    """Names and widths of the columns that models read."""
    shapes = {name: manifest.columns[name]["shape"] for name in _INPUTS if name in manifest.columns}
    return ", ".join(f"{name} (N, {shape[1]})" if len(shape) == 2 else f"{name} (N)" for name, shape in shapes.items())


def check_processes(configuration: RunConfiguration, world_size: int) -> None:
    """Raise UserError unless the global batch divides evenly over `world_size` processes and their micro-batches."""
    batch = configuration.batch
    if batch.samples % (batch.micro_batch * world_size):
        share, rest = divmod(batch.samples, world_size)
        fitting = [size for size in range(1, min(share, batch.micro_batch) + 1) if not rest and share % size == 0]
        unit = batch.micro_batch * world_size
        advice = f"choose batch.samples as a multiple of {unit}, e.g. {max(1, round(batch.samples / unit)) * unit}"
        if fitting:
            advice = f"batch.micro_batch can be {', '.join(map(str, fitting[-6:]))}; or {advice}"
        raise UserError(
            f"batch.samples {batch.samples} does not divide into {world_size} processes of micro-batches of "
            f"{batch.micro_batch}; {advice}"
        )
