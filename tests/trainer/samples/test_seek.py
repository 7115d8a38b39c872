"""Starting far into a run: as near as its beginning, and the same steps as an uninterrupted run's."""

import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardFile
from longmix.data_prep.shards import LIST_INT32
from longmix.trainer.cli import main
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.stream import DRAWN_STEPS, BatchStream
from longmix.trainer.samples import counter_random
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.sections import ObjectiveSection

SHARDS, SHARD_SAMPLES = 1526, 65536
SAMPLES = SHARDS * SHARD_SAMPLES
BATCH = 64
NINE_TENTHS = SAMPLES * 9 // 10 // BATCH


@pytest.fixture(scope="module")
def hundred_million(tmp_path_factory):
    """A data set of 10^8 samples, which takes the room of one shard: every other is a link to it."""
    folder = tmp_path_factory.mktemp("large")
    columns = {"input_ids": LIST_INT32}
    file = ShardFile(folder / "shard-00000.parquet", columns)
    tokens = pa.array([[0, 7, 8, 1]] * 256, type=pa.list_(pa.int32()))
    for _ in range(SHARD_SAMPLES // 256):
        file.write_table(pa.Table.from_arrays([tokens], schema=file.schema))
    first = file.close()
    entries = [{**first, "file": f"shard-{number:05d}.parquet"} for number in range(SHARDS)]
    for entry in entries[1:]:
        os.link(folder / first["file"], folder / entry["file"])
    fields = {"vocab_size": 96, "pad_token_id": 3, "mask_token_id": 2, "special_token_ids": [0, 1, 2, 3, 4]}
    Manifest(
        split="train", split_rule="made", columns=columns, samples=SAMPLES, shards=entries, sequence_length=4, **fields
    ).save(folder)
    return folder


def work_of_first_batch(folder, step, monkeypatch):
    """What the first batch from `step` on takes: files opened, row groups read, indices permuted, bytes of memory."""
    counts = {"opened": 0, "groups": 0, "permuted": 0}
    with monkeypatch.context() as patch:

        def count(owner, name, key, amount):
            whole = getattr(owner, name)

            def counting(self, *arguments, **options):
                counts[key] += amount(arguments)
                return whole(self, *arguments, **options)

            patch.setattr(owner, name, counting)

        count(pq.ParquetFile, "__init__", "opened", lambda _: 1)
        count(pq.ParquetFile, "read_row_group", "groups", lambda _: 1)
        count(counter_random.Permutation, "_walk", "permuted", lambda arguments: np.size(arguments[0]))
        dataset = ShardedDataset(str(folder))
        objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
        order = RunOrder([len(dataset)], [1.0], 64, 1024, seed=3)
        tracemalloc.start()
        stream = BatchStream([dataset], order, objective, BATCH, 16, 0, 1, step, step, BATCH * step)
        batch = stream.prepare(step)
        counts["memory"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        stream.close()
    assert len(batch.draw) == BATCH
    return counts


def test_nine_tenths_into_an_epoch_of_a_hundred_million_samples_is_as_near_as_its_start(hundred_million, monkeypatch):
    start = work_of_first_batch(hundred_million, 0, monkeypatch)
    late = work_of_first_batch(hundred_million, NINE_TENTHS, monkeypatch)
    # One row group for each sample at most, its file opened for the footer and once more for the samples.
    for counts in (start, late):
        assert counts["groups"] <= BATCH and counts["opened"] <= 2 * BATCH
        assert counts["permuted"] <= 3 * DRAWN_STEPS * BATCH
        assert counts["memory"] < 2**25
    assert late["memory"] < 1.5 * start["memory"]


@pytest.mark.parametrize("step", [1, NINE_TENTHS + 1])
def test_inspect_order_lists_the_samples_that_training_reads(
    hundred_million, write_run_file, run_values, tmp_path, capsys, step
):
    changes = {"data.train": str(hundred_million), "data.eval": None, "data.partitions": 64, "optim.max_steps": 2**40}
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **changes))
    assert main(["inspect-order", path, "--step", str(step), "--processes", "2"]) == 0
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert f"places {(step - 1) * 16:,} to {step * 16 - 1:,} of" in title
    assert header.split() == ["rank", "source", "epoch", "sample", "shard", "row"]
    order = RunOrder([SAMPLES], [1.0], 64, 1024, seed=0)
    expected = []
    for rank in range(2):
        draw = order.share_of_rank((step - 1) * 16, 16, rank, 2)
        expected += [
            (str(rank), str(epoch), str(sample)) for epoch, sample in zip(draw.epoch, draw.sample, strict=True)
        ]
    rows = [line.split() for line in lines]
    assert [(row[0], row[2], row[3]) for row in rows] == expected
    for row in rows:
        assert int(row[4][6:11]) * SHARD_SAMPLES + int(row[5]) == int(row[3])
    assert not (tmp_path / "run").exists()


def test_inspect_order_names_each_source_and_refuses_other_steps(
    write_data, write_run_file, run_values, tmp_path, capsys
):
    for name, samples in (("small", 20), ("large", 90)):
        write_data(tmp_path / name, samples, 1)
    sources = [{"path": str(tmp_path / "small"), "weight": 1}, {"path": str(tmp_path / "large"), "weight": 3}]
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **{"data.train": sources}))
    assert main(["inspect-order", path, "--step", "6"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    draw = RunOrder([20, 90], [1.0, 3.0], 16, 4096, seed=0).share_of_rank(5 * 16, 16, 0, 1)
    assert [(row[1].rpartition("/")[2], int(row[2]), int(row[3])) for row in rows] == [
        (("small", "large")[source], epoch, sample)
        for source, epoch, sample in zip(draw.source, draw.epoch, draw.sample, strict=True)
    ]
    for arguments, message in (
        (["--step", "0"], "--step is 0, but the run has the steps 1 to 6"),
        (["--step", "7"], "--step is 7, but the run has the steps 1 to 6"),
        (["--step", "1", "--processes", "3"], "does not divide into 3 processes"),
        (["--step", "1", "--processes", "0"], "--processes is 0"),
    ):
        assert main(["inspect-order", path, *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_run_over_weighted_sources_goes_on_exactly_where_it_stood(train, read_metrics, tmp_path, data, write_data):
    write_data(tmp_path / "second", 30, 9)
    sources = [{"path": str(data / "train"), "weight": 3}, {"path": str(tmp_path / "second"), "weight": 1}]
    changes = {"data.train": sources, "optim.max_steps": 8, "checkpoint.every_steps": 8}
    assert train(tmp_path / "whole", **changes).code == 0
    for stop in (3, 5, None):
        code = train(tmp_path / "parts", **changes, **{"run.stop_at_step": stop}).code
        assert code == (0 if stop is None else 75)
    whole, parts = (
        [
            (record["step"], record["loss"], record["grad_norm"], record["lr"])
            for record in read_metrics(folder, "train")
        ]
        for folder in (tmp_path / "whole", tmp_path / "parts")
    )
    assert whole == parts and len(whole) == 8
