"""The command line of `longmix prepare` in-process, and what a data set holds."""

import argparse
import random

import pyarrow.parquet as pq
import pytest

from longmix.data_prep.command import add_prepare_parser
from longmix.data_prep.manifest import Manifest

SYLLABLES = ["ba", "co", "de", "fin", "gul", "ho", "ji", "ka", "lo", "mer", "nu", "pi", "qua", "ro", "st", "vex", "wy"]


@pytest.fixture(scope="session")
def run_prepare():
    """run_prepare("probe", "--length", 20, ...) -> exit code; mistakes raise UserError."""

    def run(*arguments):
        parser = argparse.ArgumentParser(prog="longmix")
        add_prepare_parser(parser.add_subparsers())
        parsed = parser.parse_args(["prepare", *map(str, arguments)])
        return parsed.run(parsed)

    return run


@pytest.fixture(scope="session")
def rows_of():
    """rows_of(folder of a data set) -> its samples, in their order."""

    def read(folder):
        shards = Manifest.load(folder).shards
        return [row for shard in shards for row in pq.read_table(folder / shard["file"]).to_pylist()]

    return read


@pytest.fixture(scope="session")
def make_documents():
    """make_documents(count, seed, shortest, longest, words, others) -> texts of made-up words, and of others."""

    def make(count, seed=0, shortest=1, longest=40, words=300, others=()):
        generator = random.Random(seed)
        known = [*others, *("".join(generator.choices(SYLLABLES, k=generator.randint(1, 4))) for _ in range(words))]
        return [" ".join(generator.choices(known, k=generator.randint(shortest, longest))) for _ in range(count)]

    return make
