"""Synthetic tasks that ask one thing of a token mixer: does what stands at a given distance arrive?

copy: the class of a position is the token that stands a fixed distance to its left, or to its right.
lookup: four pairs of a key and a value, and a fixed distance away the four keys once more, in another order, as
queries; the class of a query is the value of its key. The other positions hold tokens without a meaning.

A sample is a pure function of (seed, split, its number), so nothing about it depends on how the data set is written.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import locked
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.manifest_fields import IGNORED, ONE_PER_ROW
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.data_prep.split_names import TRAIN, VALIDATION
from longmix.data_prep.tasks.task_folder import LONGEST_SAMPLE, check_seed, describe, refuse_others

TASKS = ("copy", "lookup")
LEFT, RIGHT, BOTH = "left", "right", "both"
DIRECTIONS = (LEFT, RIGHT, BOTH)
SPLITS = (TRAIN, VALIDATION)
VALIDATION_SHARE = 10  # one validation sample for so many training samples

# Copy: padding, then the symbols. Lookup: padding, tokens without a meaning, pairs (a token each), queries.
PADDING = 0
SYMBOLS = 16
FILLERS, KEYS, VALUES, PAIRS = 16, 8, 8, 4
FIRST_PAIR = 1 + FILLERS
FIRST_QUERY = FIRST_PAIR + KEYS * VALUES
_FORMAT = 1  # raise it when the same settings are to give other samples


_DESCRIPTION = """\
Make a synthetic task that asks one thing of a model: does it find what stands at a given distance?

copy: the class of each position is the token DISTANCE to its left, or right (positions without one have no label).
lookup: four pairs of a key and a value; DISTANCE away stand the four keys again, in another order, as queries, whose
classes are the values. Nothing else has a label.

DIR gets train/ and validation/ (a tenth as many samples), for runs with objective.name=token_classification. Samples
have different lengths, up to --length. Of --direction both, half of the samples look to the left and half to the
right, and their token types (0, 1) say which.
"""
_EXAMPLES = """\
example:
  longmix prepare probe --task copy --distance 16 --output data/copy-16
  longmix train configs/probe.yaml data.train=data/copy-16/train data.eval=data/copy-16/validation run.dir=runs/copy-16
"""


@dataclass(frozen=True)
class ProbeSettings:
    """The settings that decide every sample. Samples have `shortest` to `length` tokens, so that padding occurs.

    Args:
        task: copy | lookup.
        distance: from a position to what it has to find; lookup: between the first pair and the first query.
        direction: where that stands; both: half of the samples each, told by their token types (0 left, 1 right).
        length: tokens of the longest sample, at most LONGEST_SAMPLE; None: twice what the task needs.
        samples: samples to train on; a tenth as many more are held out.
        seed: another one gives other samples.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    task: str
    distance: int
    direction: str = BOTH
    length: int | None = None
    samples: int = 20000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UserError(f"--task is {self.task!r}, but must be one of {', '.join(TASKS)}")
        if self.direction not in DIRECTIONS:
            raise UserError(f"--direction is {self.direction!r}, but must be one of {', '.join(DIRECTIONS)}")
        nearest = PAIRS if self.task == "lookup" else 1
        if self.distance < nearest:
            raise UserError(f"--distance is {self.distance}, but {self.task} needs at least {nearest}")
        if self.shortest > LONGEST_SAMPLE:
            farthest = LONGEST_SAMPLE - self.shortest + self.distance
            raise UserError(f"--distance is {self.distance}, but must be at most {farthest} for {self.task}")
        if self.length is None:
            object.__setattr__(self, "length", min(2 * self.shortest, LONGEST_SAMPLE))
        if self.length < self.shortest:
            raise UserError(
                f"--length is {self.length}, but {self.task} at distance {self.distance} needs at least {self.shortest}"
            )
        if self.length > LONGEST_SAMPLE:
            raise UserError(f"--length is {self.length}, but must be at most {LONGEST_SAMPLE}")
        if self.samples < 1:
            raise UserError(f"--samples is {self.samples}, but must be at least 1")
        check_seed(self.seed)

    @property
    def shortest(self) -> int:
        """The fewest tokens with which a sample has something to find."""
        return self.distance + (PAIRS if self.task == "lookup" else 1)

    @property
    def num_labels(self) -> int:
        return VALUES if self.task == "lookup" else SYMBOLS

    @property
    def vocab_size(self) -> int:
        return FIRST_QUERY + KEYS if self.task == "lookup" else 1 + SYMBOLS


def prepare_probe(settings: ProbeSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train` and `output/validation`; returns their manifests.

    A folder that the same settings have made is left as it is, an unfinished one is finished.

    Raises:
        UserError: `output` holds anything else, cannot be written, or is being written by another process.
    """
    output = Path(output)
    report = {"probe": {"format": _FORMAT, **asdict(settings)}}
    refuse_others(output, lambda manifest: manifest.report == report)
    with locked(output):
        return _write_splits(settings, output, report)


def _write_splits(settings: ProbeSettings, output: Path, report: dict[str, Any]) -> dict[str, Manifest]:
    manifests = {}
    for split, count in zip(SPLITS, (settings.samples, -(-settings.samples // VALIDATION_SHARE)), strict=True):
        folder = output / split
        if (folder / FILE_NAME).is_file():
            manifests[split] = Manifest.load(folder)
            continue
        columns = {"input_ids": LIST_INT32, "labels": LIST_INT32}
        if settings.direction == BOTH:
            columns["token_type_ids"] = LIST_INT32
        manifests[split] = write_dataset(
            folder,
            (make_sample(settings, split, index) for index in range(count)),
            columns,
            split=split,
            split_rule="samples of their own, drawn by split, seed and number",
            vocab_size=settings.vocab_size,
            pad_token_id=PADDING,
            special_token_ids=[PADDING],
            sequence_length=settings.length,
            packing=ONE_PER_ROW,
            num_labels=settings.num_labels,
            report=report,
        )
    return manifests


# -----------------------------------------------------------------------------
# Samples: what is found to the right is the mirror image of what is found to the left.


def make_sample(settings: ProbeSettings, split: str, index: int) -> dict[str, Any]:
    """Sample `index` of a split: `input_ids` and `labels`, (n,), and `token_type_ids` where both directions occur."""
    generator = np.random.default_rng([_FORMAT, settings.seed, SPLITS.index(split), index])
    length = int(generator.integers(settings.shortest, settings.length + 1))
    is_right = settings.direction == RIGHT or (settings.direction == BOTH and bool(generator.integers(2)))
    make = _lookup if settings.task == "lookup" else _copy
    tokens, labels = make(generator, length, settings.distance)
    if is_right:
        # The mirror image of what is found to the left.
        tokens, labels = tokens[::-1], labels[::-1]
    sample = {"input_ids": tokens, "labels": labels}
    if settings.direction == BOTH:
        sample["token_type_ids"] = np.full(length, int(is_right))
    return sample


def _copy(generator: np.random.Generator, length: int, distance: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, labels): each position that has a token `distance` to its left is labelled with it."""
    symbols = generator.integers(0, SYMBOLS, length)
    labels = np.full(length, IGNORED)
    labels[distance:] = symbols[:-distance]
    return 1 + symbols, labels


def _lookup(generator: np.random.Generator, length: int, distance: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, labels): PAIRS pairs side by side, and as many queries `distance` behind them."""
    tokens = 1 + generator.integers(0, FILLERS, length)
    labels = np.full(length, IGNORED)
    start = int(generator.integers(0, length - distance - PAIRS + 1))
    keys = generator.permutation(KEYS)[:PAIRS]
    values = generator.integers(0, VALUES, PAIRS)
    asked = generator.permutation(PAIRS)
    tokens[start : start + PAIRS] = FIRST_PAIR + keys * VALUES + values
    queries = slice(start + distance, start + distance + PAIRS)
    tokens[queries] = FIRST_QUERY + keys[asked]
    labels[queries] = values[asked]
    return tokens, labels


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare probe`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--task", required=True, choices=TASKS, help="what is asked")
    add("--distance", required=True, type=int, metavar="N", help="how far away the answer stands, in tokens")
    add("--direction", choices=DIRECTIONS, default=BOTH, help="where the answer stands (default: both)")
    add("--length", type=int, metavar="N", help="tokens of the longest sample (default: twice what the task needs)")
    add("--samples", type=int, default=20000, metavar="N", help="samples to train on (default: 20000)")
    add("--seed", type=int, default=0, metavar="N", help="another one gives other samples (default: 0)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = ProbeSettings(**given_options(arguments, ProbeSettings))
    return describe(prepare_probe(settings, arguments.output), arguments.output)
