"""Long Range Arena's Text task: reviews, byte by byte, each with a class (IMDb: negative or positive).

A token is a byte of the review's UTF-8 text, cut at a length; nothing is added to it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.tasks.labelled_corpus import (
    CorpusSettings,
    LabelledCorpus,
    add_corpus_options,
    check_length,
)
from longmix.data_prep.tasks.labelled_files import Example, Layout
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, TOKEN_FIELDS, describe

LENGTH = 4096
VOCAB_SIZE = FIRST_VALUE + 256
_VALIDATION_SHARE, _TEST_SHARE = 0.1, 0.2
_FORMAT = 1  # raise it when the same settings are to give other samples

_DESCRIPTION = """\
Make a classification of texts by their bytes, as Long Range Arena's Text task does with the IMDb reviews.

PATH is a TSV file with a header, a Parquet file, a folder of them, or a folder that holds a folder of .txt files for
each class. A folder that holds splits (train/, test/, train.tsv, test.tsv, train-00000-of-00001.parquet, ...) keeps
them: so the official aclImdb/ is read as it is, without its unlabelled reviews. A split that the files do not have is
cut off the training examples by a hash of their content. What stands in two splits is left out of the training one.

DIR gets train/, validation/ and test/, for runs with objective.name=classification.
"""
_EXAMPLES = """\
examples:
  longmix prepare text-bytes --source aclImdb --length 1000 --output data/text-1000
  longmix prepare text-bytes --train reviews.tsv --test new.tsv --text-column review --output data/reviews
"""


def encode_bytes(text: str, length: int) -> np.ndarray:
    """Token ids (n,) int32 of the first `length` bytes of the UTF-8 text."""
    # A character has at least one byte: those behind the first `length` are cut off anyway.
    return np.frombuffer(text[:length].encode()[:length], np.uint8).astype(np.int32) + FIRST_VALUE


def prepare_text_bytes(
    corpus: CorpusSettings,
    output: str | Path,
    length: int = LENGTH,
    label_column: str = "label",
    text_column: str = "text",
) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests.

    Samples: `input_ids` (n,) int32, n at most `length`, and `labels`.

    Raises:
        UserError: a value out of range, a file that cannot be read, or an `output` that holds anything else.
    """
    check_length(length)
    examples = LabelledCorpus(corpus, Layout(label_column, (text_column,), ignored=("unsup",)))

    def encode(example: Example) -> dict[str, Any]:
        return {"input_ids": encode_bytes(example.texts[0], length)}

    return examples.write(
        output,
        {"name": "text-bytes", "format": _FORMAT, "length": length, "columns": [label_column, text_column]},
        {"input_ids": LIST_INT32},
        encode,
        vocab_size=VOCAB_SIZE,
        **TOKEN_FIELDS,
        sequence_length=length,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare text-bytes`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_corpus_options(parser, "the labelled texts", _VALIDATION_SHARE, _TEST_SHARE)
    add = parser.add_argument
    add("--length", type=int, default=LENGTH, metavar="N", help=f"bytes that are kept of a text (default: {LENGTH})")
    add("--label-column", default="label", metavar="NAME", help="column of the class (default: label)")
    add("--text-column", default="text", metavar="NAME", help="column of the text (default: text)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    corpus = CorpusSettings(**given_options(arguments, CorpusSettings))
    manifests = prepare_text_bytes(
        corpus,
        arguments.output,
        length=arguments.length,
        label_column=arguments.label_column,
        text_column=arguments.text_column,
    )
    return describe(manifests, arguments.output)
