"""Long Range Arena's Retrieval task: two documents, byte by byte, and whether they belong together.

In the ACL Anthology Network's pairs the class is whether one paper cites the other. The released files hold each text
as Python writes bytes (b'...', line feeds as two characters); it is kept as it stands, as the benchmark's own
program does.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from longmix.data_prep.tasks.task_folder import TOKEN_FIELDS, describe
from longmix.data_prep.tasks.text_bytes import VOCAB_SIZE, encode_bytes

LENGTH = 4000
_VALIDATION_SHARE, _TEST_SHARE = 0.1, 0.2
_FORMAT = 2  # raise it when the same settings are to give other samples
_AAN_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_AAN_LABELS = (("0", "0"), ("1", "1"), ("0.0", "0"), ("1.0", "1"))

_DESCRIPTION = """\
Make a classification of pairs of texts by their bytes, as Long Range Arena's Retrieval task does.

PATH is a TSV file with a header, a Parquet file, or a folder of them. A folder that holds splits (train.tsv, dev.tsv,
NAME.eval.tsv, test-00000-of-00001.parquet, ...) keeps them: so the folder of the official new_aan_pairs.train.tsv,
.eval.tsv and .test.tsv, which have no header, is read as it is. A split that the files do not have is cut off the
training pairs by a hash of their content; a single text may then stand in two splits, a pair may not. What stands in
two splits is left out of the training one, a pair turned around too.

DIR gets train/, validation/ and test/, for runs with objective.name=pair_classification.
"""
_EXAMPLES = """\
examples:
  longmix prepare retrieval --source lra_release/tsv_data --output data/retrieval
  longmix prepare retrieval --source pairs.parquet --first-column query --second-column passage --output data/pairs
"""


def prepare_retrieval(
    corpus: CorpusSettings,
    output: str | Path,
    length: int = LENGTH,
    label_column: str = "label",
    first_column: str = "text1",
    second_column: str = "text2",
) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests.

    Samples: `input_ids` (n,) and `input_ids_b` (n',) int32, n and n' at most `length`, and `labels`.

    Raises:
        UserError: a value out of range, a file that cannot be read, or an `output` that holds anything else.
    """
    check_length(length)
    columns = (label_column, first_column, second_column)
    headerless = _AAN_COLUMNS if set(columns) <= set(_AAN_COLUMNS) else ()
    layout = Layout(label_column, (first_column, second_column), headerless, _AAN_LABELS, suffixes=())
    examples = LabelledCorpus(corpus, layout)

    def encode(example: Example) -> dict[str, Any]:
        first, second = example.texts
        return {"input_ids": encode_bytes(first, length), "input_ids_b": encode_bytes(second, length)}

    return examples.write(
        output,
        {"name": "retrieval", "format": _FORMAT, "length": length, "columns": list(columns)},
        {"input_ids": LIST_INT32, "input_ids_b": LIST_INT32},
        encode,
        vocab_size=VOCAB_SIZE,
        **TOKEN_FIELDS,
        sequence_length=length,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare retrieval`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_corpus_options(parser, "the labelled pairs", _VALIDATION_SHARE, _TEST_SHARE)
    add = parser.add_argument
    add("--length", type=int, default=LENGTH, metavar="N", help=f"bytes that are kept of each text (default: {LENGTH})")
    add("--label-column", default="label", metavar="NAME", help="column of the class (default: label)")
    add("--first-column", default="text1", metavar="NAME", help="column of the first text (default: text1)")
    add("--second-column", default="text2", metavar="NAME", help="column of the second text (default: text2)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    corpus = CorpusSettings(**given_options(arguments, CorpusSettings))
    manifests = prepare_retrieval(
        corpus,
        arguments.output,
        length=arguments.length,
        label_column=arguments.label_column,
        first_column=arguments.first_column,
        second_column=arguments.second_column,
    )
    return describe(manifests, arguments.output)
