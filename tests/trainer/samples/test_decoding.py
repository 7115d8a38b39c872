"""What a rank of many decodes: whole row groups, of which others may use a part."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ROW_GROUP_SAMPLES, SAMPLES_PER_SHARD, ShardFile, shard_name
from longmix.data_prep.shards import LIST_INT32
from longmix.trainer.samples.decoded_groups import KEPT_ROWS
from longmix.trainer.samples.run_data import open_data
from longmix.trainer.settings import reading

RANKS, BATCH, SHARDS = 512, 4096, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Half a million samples of one token: eight names of one shard."""
    folder = tmp_path_factory.mktemp("many")
    columns = {"input_ids": LIST_INT32}
    file = ShardFile(folder / shard_name(0), columns)
    tokens = pa.array(np.arange(ROW_GROUP_SAMPLES, dtype=np.int32))
    offsets = pa.array(np.arange(ROW_GROUP_SAMPLES + 1, dtype=np.int32))
    table = pa.Table.from_arrays([pa.ListArray.from_arrays(offsets, tokens)], schema=file.schema)
    for _ in range(SAMPLES_PER_SHARD // ROW_GROUP_SAMPLES):
        file.write_table(table)
    first = file.close()
    for number in range(1, SHARDS):
        os.link(folder / shard_name(0), folder / shard_name(number))
    Manifest(
        split="train",
        split_rule="made for a test",
        columns=columns,
        samples=SHARDS * SAMPLES_PER_SHARD,
        vocab_size=ROW_GROUP_SAMPLES,
        pad_token_id=3,
        special_token_ids=[0],
        sequence_length=1,
        shards=[{**first, "file": shard_name(number)} for number in range(SHARDS)],
    ).save(folder)
    return folder


def decoded_for_each_read(folder, monkeypatch, rank, ranks=RANKS, batch=BATCH, steps=96, **data):
    values = {
        "run": {"dir": "run"},
        "model": {"model_type": "paramixer"},
        "data": {"train": str(folder), **data},
        "batch": {"samples": batch, "micro_batch": 1},
    }
    opened = open_data(reading.from_dict(values, "test"), ranks)
    decoded = []
    whole = pq.ParquetFile.read_row_group

    def read_row_group(self, group, **options):
        table = whole(self, group, **options)
        decoded.append(len(table))
        return table

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
        for step in range(steps):
            share = opened.order.share_of_rank(step * batch, batch, rank, ranks)
            opened.train[0].read(share.sample)
    return sum(decoded) / (steps * batch // ranks)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 17, 511])
def test_a_rank_of_512_decodes_little_that_it_does_not_read(folder, monkeypatch, rank):
    assert decoded_for_each_read(folder, monkeypatch, rank) <= 1.4
    # As it was: eight ranks share a range of the samples, and each decodes all of it.
    assert decoded_for_each_read(folder, monkeypatch, rank, partitions=64, window=1024) >= 5


@pytest.mark.full
def test_a_single_process_decodes_no_row_group_twice(folder, monkeypatch):
    """It holds all ranges at once, and more of them than it keeps by default."""
    assert decoded_for_each_read(folder, monkeypatch, 0, ranks=1, batch=1024, steps=300) <= 1.8


def test_a_process_keeps_twice_what_it_reads_in_turn(folder):
    def kept(ranks, **changes):
        values = {
            "run": {"dir": "run"},
            "model": {"model_type": "paramixer"},
            "data": {"train": str(folder)},
            "batch": {"samples": BATCH, "micro_batch": 1, **changes},
        }
        return open_data(reading.from_dict(values, "test"), ranks).train[0]._groups.most_rows

    assert kept(1) == 2 * 1025 * 256 and kept(2) == 2 * 513 * 256
    assert kept(RANKS) == 2 * 3 * 256
    # Batches by length take their samples from everywhere.
    assert kept(RANKS, group_by_length=True) == 2 * 1024 * 256


def test_what_is_evaluated_is_kept_from_one_evaluation_to_the_next(folder, tmp_path):
    """It is not read in ranges, but at samples all over it."""
    other = shutil.copytree(folder, tmp_path / "other")
    values = {
        "run": {"dir": "run"},
        "model": {"model_type": "paramixer"},
        "data": {"train": str(folder), "eval": str(other)},
        "batch": {"samples": BATCH, "micro_batch": 1},
    }
    assert open_data(reading.from_dict(values, "test"), RANKS).evaluation._groups.most_rows == KEPT_ROWS
