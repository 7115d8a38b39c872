"""Two tasks that grow harder with length alone: the adding problem and temporal order (Paramixer, section 4.1).

Adding: a sequence of pairs (a, b), a ~ U(-1, 1); b is 1 at two positions and 0 elsewhere; the target is 0.5 plus a
quarter of the sum of the two marked numbers. The paper counts an answer less than ADDING_TOLERANCE away as correct, and
so does the figure accuracy of our evaluations. (Its example marks three positions; its text says two, and so do we.)

Temporal order: symbols drawn from a, b, c, d, but X or Y at two positions; the class is which of the two stands first
and which second.

The two positions lie anywhere. The paper trains on 100,000 sequences and tests on 5,000; the validation split is ours.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64
from longmix.data_prep.tasks.generated import (
    GeneratedSettings,
    add_option,
    add_sample_options,
)
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, LONGEST_SAMPLE, TOKEN_FIELDS, describe, write_task

ADDING, TEMPORAL_ORDER = "adding", "temporal-order"
ADDING_TOLERANCE = 0.04
SYMBOLS = "abcdXY"  # their ids begin at FIRST_VALUE
NOISE = 4  # the first of SYMBOLS; X and Y follow
CLASSES = ("X,X", "X,Y", "Y,X", "Y,Y")
_FORMAT = 1  # raise it when the same settings are to give other samples


@dataclass(frozen=True, kw_only=True)
class LongRangeSettings(GeneratedSettings):
    """The settings that decide every sample of both tasks.

    Args:
        length: of every sequence, 2 to LONGEST_SAMPLE; the paper's are the powers of two from 128 to 32768.
    """

    length: int = 128
    train_samples: int = 100_000
    validation_samples: int = 5_000
    test_samples: int = 5_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("length", 2 <= self.length <= LONGEST_SAMPLE, f"2 to {LONGEST_SAMPLE}")


def prepare_adding(settings: LongRangeSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test` of the adding problem; returns their manifests.

    Raises:
        UserError: as `write_task`.
    """
    return write_task(
        output,
        {"name": ADDING, "format": _FORMAT, **asdict(settings)},
        {"values": {"dtype": "float32", "shape": [None, 2]}, "labels": SCALAR_FLOAT32},
        settings.splits(make_adding_sample),
        sequence_length=settings.length,
        tolerance=ADDING_TOLERANCE,
    )


def prepare_temporal_order(settings: LongRangeSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test` of temporal order; returns their manifests.

    Raises:
        UserError: as `write_task`.
    """
    return write_task(
        output,
        {"name": TEMPORAL_ORDER, "format": _FORMAT, **asdict(settings)},
        {"input_ids": LIST_INT32, "labels": SCALAR_INT64},
        settings.splits(make_temporal_order_sample),
        vocab_size=FIRST_VALUE + len(SYMBOLS),
        **TOKEN_FIELDS,
        sequence_length=settings.length,
        num_labels=len(CLASSES),
        label_names=list(CLASSES),
    )


# -----------------------------------------------------------------------------
# Samples: each a pure function of the settings, the split and its number.


def make_adding_sample(settings: LongRangeSettings, split: str, index: int) -> dict[str, Any]:
    """Sample `index` of a split: `values` (N, 2) float32, the numbers and their marks, and `labels`, a float32."""
    generator = settings.generator(split, index)
    values = np.zeros((settings.length, 2), dtype=np.float32)
    values[:, 0] = generator.uniform(-1, 1, settings.length)
    marked = _two_positions(generator, settings.length)
    values[marked, 1] = 1
    # Of the rounded numbers, those that a model sees.
    target = 0.5 + values[marked, 0].astype(np.float64).sum() / 4
    return {"values": values, "labels": np.float32(target)}


def make_temporal_order_sample(settings: LongRangeSettings, split: str, index: int) -> dict[str, Any]:
    """Sample `index` of a split: `input_ids` (N,) and `labels`, an index of CLASSES."""
    generator = settings.generator(split, index)
    symbols = generator.integers(0, NOISE, settings.length)
    first, second = (int(signal) for signal in generator.integers(0, 2, 2))
    symbols[_two_positions(generator, settings.length)] = NOISE + first, NOISE + second
    return {"input_ids": FIRST_VALUE + symbols, "labels": 2 * first + second}


def _two_positions(generator: np.random.Generator, length: int) -> np.ndarray:
    """(2,): two different positions, every pair equally likely, the earlier one first."""
    first = generator.integers(0, length)
    second = generator.integers(0, length - 1)
    return np.sort([first, second + (second >= first)])


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_adding_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare adding`."""
    _add_arguments(
        parser,
        ADDING,
        prepare_adding,
        "Make the adding problem: a sequence of pairs of a number between -1 and 1 and a mark, which is 1 at two\n"
        "positions; the target is 0.5 + (the sum of the two numbers) / 4. For runs with objective.name=regression.\n"
        f"The figure accuracy counts an answer less than {ADDING_TOLERANCE} away as correct, as the paper does.",
    )


def add_temporal_order_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare temporal-order`."""
    _add_arguments(
        parser,
        TEMPORAL_ORDER,
        prepare_temporal_order,
        "Make temporal order: a sequence of the symbols a, b, c, d with X or Y at two positions; the four classes\n"
        "are XX, XY, YX and YY. For runs with objective.name=classification.",
    )


def _add_arguments(parser: argparse.ArgumentParser, name: str, prepare: Any, description: str) -> None:
    paper = "The task of the Paramixer paper, section 4.1. DIR gets train/, validation/ and test/."
    parser.description = f"{description}\n\n{paper}"
    parser.epilog = f"example:\n  longmix prepare {name} --length 2048 --output data/{name}-2048"
    add_option(parser, LongRangeSettings, "length", "length of the sequences; the paper's are 128 to 32768")
    add_sample_options(parser, LongRangeSettings)

    def make(arguments: argparse.Namespace) -> Iterator[str]:
        settings = LongRangeSettings(**given_options(arguments, LongRangeSettings))
        return describe(prepare(settings, arguments.output), arguments.output)

    parser.set_defaults(make=make)
