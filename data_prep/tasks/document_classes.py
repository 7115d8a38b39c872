"""Long documents, character by character, each with a class (Paramixer 4.3, Converter 5.2: fields of arXiv papers).

A token is a character. The vocabulary is the most frequent characters of the training documents, in the order of their
code points; all others are one token.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.split_names import TRAIN
from longmix.data_prep.tasks.labelled_corpus import (
    CorpusSettings,
    LabelledCorpus,
    add_corpus_options,
    check_length,
)
from longmix.data_prep.tasks.labelled_files import Example, Layout
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, MASK, PADDING, SPECIAL, describe, kept_in

LENGTH = 16384
CHARACTERS = 256
UNKNOWN = FIRST_VALUE
_FIRST_CHARACTER = UNKNOWN + 1
_CODE_POINTS = 0x110000
_VALIDATION_SHARE, _TEST_SHARE = 0.2, 0.2  # Converter 5.2
_FORMAT = 1  # raise it when the same settings are to give other samples

_DESCRIPTION = """\
Make a classification of long documents by their characters.

PATH is a folder that holds a folder of .txt files for each class, or a Parquet or TSV file (or a folder of them) with
a column for the class. A folder that holds splits (train/, validation/, test/, train.parquet, ...) keeps them. A split
that the files do not have is cut off the training documents by a hash of their content.

A token is a character: the most frequent ones of the training documents have ids of their own, all others share one.

DIR gets train/, validation/ and test/, for runs with objective.name=classification.
"""
_EXAMPLES = """\
examples:
  longmix prepare documents --source arxiv --length 32768 --output data/documents-32k
  longmix prepare documents --source papers.parquet --label-column field --text-column body --output data/papers
"""


def prepare_documents(
    corpus: CorpusSettings,
    output: str | Path,
    length: int = LENGTH,
    characters: int = CHARACTERS,
    label_column: str = "label",
    text_column: str = "text",
) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests.

    Samples: `input_ids` (n,) int32, n at most `length`, and `labels`. The manifests' report says which characters have
    ids of their own (`report.task.vocabulary`, a text; the first has id 3).

    Raises:
        UserError: a value out of range, a file that cannot be read, or an `output` that holds anything else.
    """
    check_length(length)
    if not 1 <= characters <= _CODE_POINTS:
        raise UserError(f"--characters is {characters}, but must be 1 to {_CODE_POINTS}")
    examples = LabelledCorpus(corpus, Layout(label_column, (text_column,)))
    vocabulary = _most_frequent(examples, length, characters)
    ids = np.full(_CODE_POINTS, UNKNOWN, np.int32)
    ids[_code_points(vocabulary)] = np.arange(len(vocabulary)) + _FIRST_CHARACTER

    def encode(example: Example) -> dict[str, Any]:
        return {"input_ids": ids[_code_points(example.texts[0][:length])]}

    return examples.write(
        output,
        {
            "name": "documents",
            "format": _FORMAT,
            "length": length,
            "characters": characters,
            "columns": [label_column, text_column],
            "vocabulary": vocabulary,
        },
        {"input_ids": LIST_INT32},
        encode,
        vocab_size=_FIRST_CHARACTER + len(vocabulary),
        pad_token_id=PADDING,
        mask_token_id=MASK,
        special_token_ids=[*SPECIAL, UNKNOWN],
        sequence_length=length,
    )


def _most_frequent(examples: LabelledCorpus, length: int, characters: int) -> str:
    """The vocabulary: the most frequent characters of the training documents, each cut at `length`, by code point."""
    given = examples.splits(lambda example: {"code_points": _code_points(example.texts[0][:length])})
    counts = np.zeros(_CODE_POINTS, np.int64)
    for sample in kept_in(TRAIN, given):
        found, times = np.unique(sample["code_points"], return_counts=True)
        counts[found] += times
    found = np.flatnonzero(counts)
    frequent = found[np.argsort(-counts[found], kind="stable")][:characters]
    return "".join(map(chr, sorted(frequent)))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare documents`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_corpus_options(parser, "the labelled documents", _VALIDATION_SHARE, _TEST_SHARE)
    add = parser.add_argument
    add("--length", type=int, default=LENGTH, metavar="N", help=f"characters kept of each document (default: {LENGTH})")
    add("--characters", type=int, default=CHARACTERS, metavar="N", help="with ids of their own (default: 256)")
    add("--label-column", default="label", metavar="NAME", help="column of the class (default: label)")
    add("--text-column", default="text", metavar="NAME", help="column of the document (default: text)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    corpus = CorpusSettings(**given_options(arguments, CorpusSettings))
    manifests = prepare_documents(
        corpus,
        arguments.output,
        length=arguments.length,
        characters=arguments.characters,
        label_column=arguments.label_column,
        text_column=arguments.text_column,
    )
    return describe(manifests, arguments.output)
