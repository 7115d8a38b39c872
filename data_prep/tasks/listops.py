"""ListOps: nested operations on lists of digits; the class is the digit that comes out (Long Range Arena).

The expressions follow the Arena's published generator: below the depth limit, a place holds a list with probability
1/4, of 2 to 10 arguments, else a digit; operators and digits are equally likely; an expression of 500 tokens or fewer,
or of 2000 or more, is drawn again. A token is a digit, an operator with its bracket, or a closing bracket. The
published files hold parentheses too, which say nothing, are not counted there either, and are left out.

What differs: no sample stands in two splits (there, none stands twice anywhere), and a sample has a seed of its own.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.data_prep.tasks.generated import (
    GeneratedSettings,
    add_option,
    add_sample_options,
    option_of,
)
from longmix.data_prep.tasks.listops_expressions import DIGITS, FILES, OPERATORS, SYMBOLS, evaluate, read_tsv
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, LONGEST_SAMPLE, TOKEN_FIELDS, Split, describe, write_task

LIST_PROBABILITY = 0.25
ATTEMPTS = 200_000  # by default 1 in 14 fits
_FORMAT = 1  # raise it when the same settings are to give other samples


@dataclass(frozen=True, kw_only=True)
class ListOpsSettings(GeneratedSettings):
    """The settings that decide every generated sample; the defaults are the Long Range Arena's.

    Args:
        max_depth: of the tree of an expression, digits counted: lists are nested at most max_depth - 1 deep.
        max_arguments: of a list; it has at least 2.
        min_length, max_length: every expression has more tokens than the one, fewer than the other.
    """

    max_depth: int = 10
    max_arguments: int = 10
    min_length: int = 500
    max_length: int = 2000
    train_samples: int = 96_000
    validation_samples: int = 2_000
    test_samples: int = 2_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("max_depth", self.max_depth >= 1, "at least 1")
        self.require("max_arguments", 2 <= self.max_arguments <= LONGEST_SAMPLE, f"2 to {LONGEST_SAMPLE}")
        self.require("min_length", self.min_length >= 0, "at least 0")
        least = self.min_length + 2
        self.require(
            "max_length",
            least <= self.max_length <= LONGEST_SAMPLE,
            f"{least} ({option_of('min_length')} + 2) to {LONGEST_SAMPLE}",
        )


def prepare_listops(settings: ListOpsSettings, output: str | Path) -> dict[str, Manifest]:
    """Generate `output/train`, `output/validation` and `output/test`; returns their manifests.

    Raises:
        UserError: hardly any expression is as long as the settings ask; and as `write_task`.
    """
    splits = settings.splits(make_sample)
    return _write({**asdict(settings)}, output, splits, longest=settings.max_length - 1)


def prepare_listops_files(source: str | Path, output: str | Path) -> dict[str, Manifest]:
    """Write the three splits of the files in the folder `source`, which are named as in the Arena's release.

    Raises:
        UserError: a file is missing or wrong (`read_tsv`); and as `write_task`.
    """
    paths = {split: Path(source) / name for split, name in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise UserError(f"{path} is missing: {option_of('source')} names the folder of {', '.join(FILES.values())}")
    longest = max(len(expression) for path in paths.values() for expression, _ in read_tsv(path))
    if longest > LONGEST_SAMPLE:
        raise UserError(f"{source} holds an expression of {longest} tokens, but at most {LONGEST_SAMPLE} are allowed")

    def split_of(path: Path) -> Split:
        return Split(lambda: (_sample(*row) for row in read_tsv(path)), f"the file {path.name}")

    files = {split: {"file": path.name, "sha256": sha256_of_file(path)} for split, path in paths.items()}
    return _write({"files": files}, output, {split: split_of(path) for split, path in paths.items()}, longest)


def _write(settings: dict[str, Any], output: str | Path, splits: dict[str, Split], longest: int) -> dict[str, Manifest]:
    return write_task(
        output,
        {"name": "listops", "format": _FORMAT, **settings},
        {"input_ids": LIST_INT32, "labels": SCALAR_INT64},
        splits,
        vocab_size=FIRST_VALUE + len(SYMBOLS),
        **TOKEN_FIELDS,
        sequence_length=longest,
        num_labels=DIGITS,
        label_names=[str(digit) for digit in range(DIGITS)],
    )


# -----------------------------------------------------------------------------
# Generated expressions: the tree is drawn first, level by level, since most are too short or too long.


def make_sample(settings: ListOpsSettings, split: str, index: int) -> dict[str, Any]:
    """Sample `index` of a split: `input_ids` (n,) and `labels`, the expression's value."""
    generator = settings.generator(split, index)
    for _ in range(ATTEMPTS):
        levels = _draw_tree(generator, settings)
        if levels is not None:
            expression = _write_out(generator, levels)
            return _sample(expression, evaluate(expression))
    raise UserError(
        f"of {ATTEMPTS:,} expressions none had more than {settings.min_length} and fewer than {settings.max_length} "
        f"tokens: change {option_of('min_length')}, {option_of('max_length')}, {option_of('max_depth')} or "
        f"{option_of('max_arguments')}"
    )


def _sample(expression: list[int], value: int) -> dict[str, Any]:
    return {"input_ids": FIRST_VALUE + np.array(expression), "labels": value}


def _draw_tree(generator: np.random.Generator, settings: ListOpsSettings) -> list[np.ndarray] | None:
    """For each level of a tree, the numbers of arguments of its places from left to right, 0 for a digit.

    None where the expression is too short or too long: most are, and are given up early.
    """
    levels = []
    places, length = 1, 0
    for depth in range(1, settings.max_depth + 1):
        arguments = np.zeros(places, dtype=np.int64)
        if depth < settings.max_depth:
            is_list = generator.random(places) < LIST_PROBABILITY
            arguments[is_list] = generator.integers(2, settings.max_arguments + 1, int(is_list.sum()))
        levels.append(arguments)
        length += places + np.count_nonzero(arguments)  # a list has two brackets
        places = int(arguments.sum())
        if length + places >= settings.max_length:
            return None
        if not places:
            break
    return levels if length > settings.min_length else None


def _write_out(generator: np.random.Generator, levels: list[np.ndarray]) -> list[int]:
    """The expression, with random digits and operators, as indices of SYMBOLS."""
    below: Iterator[list[int]] = iter(())
    for arguments in reversed(levels):
        digits = generator.integers(0, DIGITS, len(arguments)).tolist()
        operators = generator.integers(DIGITS, DIGITS + len(OPERATORS), len(arguments)).tolist()
        here = []
        for count, digit, operator in zip(arguments.tolist(), digits, operators, strict=True):
            if count:
                parts = (symbol for _ in range(count) for symbol in next(below))
                here.append([operator, *parts, len(SYMBOLS) - 1])
            else:
                here.append([digit])
        below = iter(here)
    return next(below)


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


_DESCRIPTION = """\
Make ListOps of the Long Range Arena: expressions such as "[MAX 2 9 [MIN 4 7 ] 0 ]", ten classes, the digit that comes
out. They are generated as the Arena's were; or --source names the folder of its published files (basic_train.tsv,
basic_val.tsv, basic_test.tsv), whose splits stay and whose answers are checked.

DIR gets train/, validation/ and test/, for runs with objective.name=classification.
"""
_EXAMPLES = """\
examples:
  longmix prepare listops --output data/listops
  longmix prepare listops --min-length 100 --max-length 500 --train-samples 20000 --output data/listops-short
  longmix prepare listops --source lra_release/listops-1000 --output data/listops-official
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare listops`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--source", metavar="DIR", help="read the published files in this folder, and generate nothing")
    add_option(parser, ListOpsSettings, "max_depth", "of an expression's tree, digits counted")
    add_option(parser, ListOpsSettings, "max_arguments", "of a list")
    add_option(parser, ListOpsSettings, "min_length", "every expression has more tokens")
    add_option(parser, ListOpsSettings, "max_length", "every expression has fewer tokens")
    add_sample_options(parser, ListOpsSettings)
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    given = given_options(arguments, ListOpsSettings)
    if arguments.source is None:
        return describe(prepare_listops(ListOpsSettings(**given), arguments.output), arguments.output)
    if given:
        raise UserError(f"{option_of(next(iter(given)))} is for generated expressions: leave it out, or --source")
    return describe(prepare_listops_files(arguments.source, arguments.output), arguments.output)
