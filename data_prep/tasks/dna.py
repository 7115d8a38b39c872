"""DNA sequences, base by base, each with a class (Paramixer 4.4, Converter 5.3: which organism a sequence is of).

A token is a base: A, C, G, T, or N for every base that is not known for certain. RNA's U is read as T, lower case as
upper case.
"""

import argparse
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.tasks.labelled_corpus import (
    CorpusSettings,
    LabelledCorpus,
    add_corpus_options,
    check_length,
)
from longmix.data_prep.tasks.labelled_files import DIGEST_BYTES, Example, Layout
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, TOKEN_FIELDS, describe
from longmix.kernels.common.safe_files import open_input

LENGTH = 16384  # Paramixer 4.4, Converter 5.3
BASES = "ACGTN"
FASTA = tuple(name + end for end in ("", ".gz") for name in (".fasta", ".fa", ".fna"))
_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC's letters for two or three possible bases
_BASE_OF = {**dict(zip(BASES, BASES, strict=True)), "U": "T", **dict.fromkeys(_AMBIGUOUS, "N")}
_BASE_OF |= {letter.lower(): base for letter, base in _BASE_OF.items()}
_NORMAL = str.maketrans(_BASE_OF)
_NORMAL_BYTES = bytes(ord(_BASE_OF.get(chr(byte), "\0")) for byte in range(256))  # zero for what is no base
_OTHER = re.compile(f"[^{''.join(_BASE_OF)}]")
_IDS = np.zeros(256, np.int32)
_IDS[[ord(base) for base in BASES]] = np.arange(FIRST_VALUE, FIRST_VALUE + len(BASES))
_PIECE = 1 << 20  # a sequence may be one line of many megabytes
_VALIDATION_SHARE, _TEST_SHARE = 0.2, 0.2
_FORMAT = 1  # raise it when the same settings are to give other samples

_DESCRIPTION = """\
Make a classification of DNA sequences by their bases.

PATH is a folder that holds a FASTA file (.fa, .fasta, .fna, also with .gz) for each class, named after it, or a folder
of FASTA files for each class; or single FASTA files, --source given once for each; or a TSV or Parquet file with a
sequence and a class in a row. A folder that holds splits (train/, test/, train.tsv, ...) keeps them. A split that the
files do not have is cut off the training sequences by a hash of their content.

Letters of IUPAC's code for uncertain bases become N. The classes' sizes are told: where they differ, look at ROC AUC.

DIR gets train/, validation/ and test/, for runs with objective.name=classification.
"""
_EXAMPLES = """\
examples:
  longmix prepare dna --source Bos.fa.gz --source Sus.fa.gz --output data/bos-sus
  longmix prepare dna --source promoters.tsv --length 128 --output data/promoters
  longmix prepare dna --source hfdna --shortest 5000 --output data/hfdna
"""


def prepare_dna(
    corpus: CorpusSettings,
    output: str | Path,
    length: int = LENGTH,
    shortest: int = 1,
    label_column: str = "label",
    sequence_column: str = "sequence",
) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests.

    Samples: `input_ids` (n,) int32, n at most `length`, and `labels`.

    Args:
        shortest: shorter sequences, before they are cut, are left out (Paramixer's HFDNA: 5000).

    Raises:
        UserError: a value out of range, a file that cannot be read or holds anything but bases, or an `output` that
            holds anything else.
    """
    check_length(length)
    if shortest < 1:
        raise UserError(f"--shortest is {shortest}, but must be at least 1")
    layout = Layout(
        label_column,
        (sequence_column,),
        suffixes=FASTA,
        class_per_file=True,
        clean=clean_sequence,
        read_file=lambda path: read_fasta(path, length),
    )
    examples = LabelledCorpus(corpus, layout, shortest)

    def encode(example: Example) -> dict[str, Any]:
        return {"input_ids": _IDS[np.frombuffer(example.texts[0][:length].encode(), np.uint8)]}

    return examples.write(
        output,
        {
            "name": "dna",
            "format": _FORMAT,
            "length": length,
            "shortest": shortest,
            "columns": [label_column, sequence_column],
        },
        {"input_ids": LIST_INT32},
        encode,
        vocab_size=FIRST_VALUE + len(BASES),
        **TOKEN_FIELDS,
        sequence_length=length,
    )


# -----------------------------------------------------------------------------
# Reading FASTA: a chromosome may be one line of many megabytes, so nothing is read whole.


def clean_sequence(letters: str, place: str) -> str:
    """`letters` written in BASES. Raises UserError, with the place, for anything that is no base."""
    wrong = _OTHER.search(letters)
    if wrong:
        raise UserError(
            f"{place}: {wrong[0]!r} is no base of DNA or RNA; allowed are A, C, G, T, U, N and {', '.join(_AMBIGUOUS)}"
        )
    return letters.translate(_NORMAL)


def read_fasta(path: Path, length: int) -> Iterator[Example]:
    """The records of a FASTA file, as examples without a label; texts hold the first `length` bases.

    Raises:
        UserError: with file and line, for what is no FASTA.
    """
    record: _Record | None = None
    number, at_line_start, in_header = 1, True, False
    try:
        with open_input(path) as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
            for piece in iter(lambda: stream.readline(_PIECE), b""):
                if at_line_start and piece.startswith(b">"):
                    if record is not None:
                        yield record.example()
                    record, in_header = _Record(f"{path}, line {number}", length), True
                elif not in_header:
                    # There are many millions of lines: `clean_sequence` only explains what is wrong with one.
                    bases = piece.strip().translate(_NORMAL_BYTES)
                    if 0 in bases:
                        clean_sequence(piece.decode("ascii", "replace").strip(), f"{path}, line {number}")
                    if record is not None:
                        record.add(bases)
                    elif bases:
                        raise UserError(f"{path}, line {number}: FASTA begins with a line that starts with '>'")
                at_line_start = piece.endswith(b"\n")
                number += at_line_start
                in_header = in_header and not at_line_start
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged, or not compressed with gzip: {error}") from None
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None
    if record is None:
        raise UserError(f"{path} holds no sequence: FASTA has a line that starts with '>' before each")
    yield record.example()


class _Record:
    """A sequence that is read a piece at a time: chromosomes would not be held well."""

    def __init__(self, place: str, length: int):
        self._place, self._length = place, length
        self._kept: list[bytes] = []
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def add(self, bases: bytes) -> None:
        missing = self._length - self._size
        if missing > 0:
            self._kept.append(bases[:missing])
        self._size += len(bases)
        self._digest.update(bases)

    def example(self) -> Example:
        return Example((b"".join(self._kept).decode(),), "", self._size, self._digest.digest(), self._place)


# -----------------------------------------------------------------------------
# The command line: options of the corpus, and the task's own.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare dna`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_corpus_options(parser, "the labelled sequences", _VALIDATION_SHARE, _TEST_SHARE)
    add = parser.add_argument
    add("--length", type=int, default=LENGTH, metavar="N", help=f"bases kept of each sequence (default: {LENGTH})")
    add("--shortest", type=int, default=1, metavar="N", help="leave shorter sequences out (default: 1)")
    add("--label-column", default="label", metavar="NAME", help="column of the class (default: label)")
    add("--sequence-column", default="sequence", metavar="NAME", help="column of the sequence (default: sequence)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    corpus = CorpusSettings(**given_options(arguments, CorpusSettings))
    manifests = prepare_dna(
        corpus,
        arguments.output,
        length=arguments.length,
        shortest=arguments.shortest,
        label_column=arguments.label_column,
        sequence_column=arguments.sequence_column,
    )
    return describe(manifests, arguments.output)
