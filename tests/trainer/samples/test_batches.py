"""From shards to padded batches: collating, random access, the background thread."""

import json
import shutil
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardWriter
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run import stream as streams
from longmix.trainer.run.stream import PREFETCHED_STEPS, BatchStream
from longmix.trainer.samples import dataset as datasets
from longmix.trainer.samples.collate import collate
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.sections import ObjectiveSection


@pytest.fixture
def sharded(tmp_path, write_data):
    """A folder of three shards (70 + 70 + 10 samples) in row groups of 16, and its samples."""
    generator = np.random.default_rng(0)
    samples = [
        {"input_ids": generator.integers(5, 90, generator.integers(2, 9)).tolist(), "labels": number}
        for number in range(150)
    ]
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    with ShardWriter(tmp_path / "set", columns, samples_per_shard=70, row_group_samples=16) as writer:
        for sample in samples:
            writer.write(sample)
    Manifest(split="train", split_rule="test", columns=columns, samples=150, shards=writer.entries).save(
        tmp_path / "set"
    )
    return tmp_path / "set", samples


def test_padding_masks_and_document_ids():
    samples = [
        {
            "input_ids": np.asarray([7, 8, 9, 10, 11]),
            "document_starts": np.asarray([0, 2, 4]),
            "token_type_ids": np.asarray([1, 1, 1, 1, 1]),
            "labels": np.asarray([7, -100, -100, -100, 11]),
        },
        {
            "input_ids": np.asarray([5, 6]),
            "document_starts": np.asarray([0]),
            "token_type_ids": np.asarray([1, 0]),
            "labels": np.asarray([-100, 6]),
        },
    ]
    batch = collate(samples, pad_token_id=3)
    assert batch["input_ids"].tolist() == [[7, 8, 9, 10, 11], [5, 6, 3, 3, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch["document_ids"].tolist() == [[0, 0, 1, 1, 2], [0, 0, 0, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[7, -100, -100, -100, 11], [-100, 6, -100, -100, -100]]
    # Every document and every row's padding begins a segment.
    assert str(batch["segment_offsets"].dtype) == "torch.int32" and batch["longest_segment"] == 3
    assert batch["segment_offsets"].tolist() == [0, 2, 4, 5, 7, 10]
    columns = {"input_ids", "attention_mask", "document_ids", "token_type_ids", "labels"}
    assert set(batch) == columns | {"segment_offsets", "longest_segment"}
    full = collate([samples[0], samples[0]], pad_token_id=None)
    assert "attention_mask" not in full and full["input_ids"].shape == (2, 5)
    assert full["segment_offsets"].tolist() == [0, 2, 4, 5, 7, 9, 10] and full["longest_segment"] == 2


def test_scalar_labels_stay_scalars():
    samples = [{"input_ids": np.asarray([1]), "labels": np.float32(0.5)}, {"input_ids": np.asarray([1]), "labels": 2.0}]
    assert collate(samples, 3)["labels"].tolist() == [0.5, 2.0]


def test_random_access_equals_sequential_reading_over_all_borders(sharded):
    folder, samples = sharded
    dataset = ShardedDataset(str(folder))
    assert len(dataset) == 150
    chosen = np.random.default_rng(3).permutation(np.concatenate([np.arange(150), [0, 15, 16, 69, 70, 139, 140, 149]]))
    for index, sample in zip(chosen, dataset.read(chosen), strict=True):
        assert sample["input_ids"].tolist() == samples[index]["input_ids"]
        assert sample["labels"] == samples[index]["labels"]


def test_the_cache_drops_the_longest_unused_row_groups(sharded, monkeypatch):
    folder, _ = sharded
    monkeypatch.setattr(datasets, "KEPT_ROWS", 40)
    monkeypatch.setattr(datasets, "KEPT_FOOTERS", 1)
    dataset = ShardedDataset(str(folder))
    reads = []
    whole = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, group, **options: reads.append(group) or whole(self, group, **options),
    )
    dataset.read(np.asarray([0, 1, 17, 0, 18]))
    assert sorted(reads) == [0, 1]
    reads.clear()
    dataset.read(np.asarray([0]))
    dataset.read(np.asarray([33]))
    # 48 samples are over the bound: group 1 or 0 had to go, the one used longest ago first.
    dataset.read(np.asarray([1]))
    assert reads == [2]
    dataset.read(np.asarray([17]))
    assert reads == [2, 1]
    generator = np.random.default_rng(4)
    for index in generator.integers(0, 150, 300):
        assert dataset.read(np.asarray([index]))[0]["labels"] == index
        assert dataset._groups.rows <= 40
        assert len(dataset._footers) == 1


def test_missing_short_and_damaged_shards_are_the_users_to_mend(sharded):
    folder, _ = sharded
    shard = folder / "shard-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(UserError, match=r"shard-00001.parquet has \d+ bytes"):
        ShardedDataset(str(folder))
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-00001.parquet is missing"):
        ShardedDataset(str(folder))
    shard.write_bytes(b"x" * len(whole))
    with pytest.raises(UserError, match=r"shard-00001.parquet cannot be read as a shard"):
        ShardedDataset(str(folder)).read(np.asarray([80]))
    # The footer is whole, the pages are not.
    shard.write_bytes(whole[:4] + b"\0" * 900 + whole[904:])
    with pytest.raises(UserError, match=r"shard-00001.parquet .*prepare or copy it again"):
        ShardedDataset(str(folder)).read(np.arange(70, 140))


def test_a_flipped_bit_is_noticed(sharded):
    folder, _ = sharded
    shard = folder / "shard-00001.parquet"
    whole = shard.read_bytes()
    indices = np.arange(70, 140)
    expected = ShardedDataset(str(folder)).read(indices)
    noticed = 0
    for place in range(4, len(whole), 97):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = ShardedDataset(str(folder)).read(indices)
        except UserError:
            noticed += 1
            continue
        # What Parquet does not need for reading (statistics, names) may differ unnoticed; samples never.
        for before, now in zip(expected, found, strict=True):
            assert all(np.array_equal(before[name], now[name]) for name in before)
    assert noticed > 10


def test_a_whole_file_of_another_data_set_is_found_while_there_is_time(sharded):
    folder, _ = sharded
    first, second = folder / "shard-00000.parquet", folder / "shard-00001.parquet"
    dataset = ShardedDataset(str(folder))
    dataset.read(np.asarray([80]))
    dataset.verify_next()
    # As many samples of the same columns, and with luck as many bytes: here the manifest is made to say so.
    shutil.copy(first, second)
    path = folder / "manifest.json"
    entries = json.loads(path.read_text())
    entries["shards"][1]["bytes"] = entries["shards"][0]["bytes"]
    path.write_text(json.dumps(entries))
    dataset = ShardedDataset(str(folder))
    dataset.verify_next()
    dataset.read(np.asarray([80, 81]))
    with pytest.raises(UserError, match=r"shard-00001\.parquet .*its SHA-256 is not the manifest's"):
        dataset.verify_next()


def test_an_empty_data_set_is_refused(tmp_path, write_data):
    write_data(tmp_path / "set", 0, 0)
    with pytest.raises(UserError, match="holds no sample"):
        ShardedDataset(str(tmp_path / "set"))


def make_stream(folder, first_step=0, last_step=20, **arguments):
    dataset = ShardedDataset(str(folder))
    objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
    order = RunOrder([len(dataset)], [1.0], 8, 8192, 0)
    return BatchStream(
        [dataset],
        order,
        objective,
        **{
            "batch_samples": 16,
            "micro_batch": 4,
            "rank": 0,
            "world_size": 1,
            "first_step": first_step,
            "last_step": last_step,
            "first_place": 16 * first_step,
            **arguments,
        },
    )


def test_the_stream_gives_the_steps_in_order_from_anywhere(data):
    with make_stream(data / "train") as stream:
        whole = list(stream)
    assert len(whole) == 20
    with make_stream(data / "train", first_step=13) as stream:
        part = list(stream)
    for early, late in zip(whole[13:], part, strict=True):
        assert early.items == late.items and early.tokens == late.tokens
        for first, second in zip(early.micro_batches, late.micro_batches, strict=True):
            assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    for batch in whole:
        assert len(batch.micro_batches) == 4
        assert batch.items == sum(int((part["labels"] != -100).sum()) for part in batch.micro_batches)
        assert batch.tokens == sum(
            int(part["attention_mask"].sum() if "attention_mask" in part else part["input_ids"].numel())
            for part in batch.micro_batches
        )


def test_a_step_is_read_at_once_however_small_its_micro_batches(data, monkeypatch):
    with make_stream(data / "train", last_step=0, micro_batch=1) as stream:
        reads = []
        whole = ShardedDataset.read
        monkeypatch.setattr(ShardedDataset, "read", lambda self, indices: reads.append(indices) or whole(self, indices))
        batches = stream.prepare(3).micro_batches
    assert len(batches) == 16 and len(reads) == 1 and len(reads[0]) == 16


def test_batches_for_a_gpu_lie_in_pinned_memory(data, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    with make_stream(data / "train", last_step=0) as stream:
        stream.prepare(0)
    assert pinned == []
    with make_stream(data / "train", last_step=0, pins=True) as stream:
        batches = stream.prepare(0).micro_batches
    held = [value for batch in batches for value in batch.values() if isinstance(value, torch.Tensor)]
    assert len(batches) == 4 and [id(tensor) for tensor in pinned] == [id(tensor) for tensor in held]


def test_an_error_in_the_data_thread_reaches_the_consumer(data):
    class Failing(ShardedDataset):
        def read(self, indices):
            raise UserError("shard gone")

    dataset = ShardedDataset(str(data / "train"))
    failing = Failing(str(data / "train"))
    objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
    order = RunOrder([len(dataset)], [1.0], 8, 8192, 0)
    with (
        BatchStream([failing], order, objective, 16, 4, 0, 1, 0, 20, 0) as broken,
        pytest.raises(UserError, match="shard gone"),
    ):
        next(iter(broken))


def test_closing_ends_the_thread_wherever_it_stands(data):
    before = threading.active_count()
    stream = make_stream(data / "train", last_step=10**6)
    next(iter(stream))
    assert stream._thread.is_alive()
    stream.close()
    assert not stream._thread.is_alive() and threading.active_count() == before
    with pytest.raises(RuntimeError, match="stop here"), make_stream(data / "train") as stream:
        raise RuntimeError("stop here")
    assert not stream._thread.is_alive()


def test_the_thread_compares_hashes_while_the_run_computes(data, tmp_path):
    folder = shutil.copytree(data / "train", tmp_path / "train")
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    values["shards"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(values))
    with make_stream(folder, last_step=40) as stream, pytest.raises(UserError, match="its SHA-256 is not"):
        for _ in stream:
            stream._thread.join(0.15)


def test_a_store_that_does_not_answer_keeps_no_run_from_stopping(data, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(ShardedDataset, "fetch", lambda self, indices: answer.wait(60))
    monkeypatch.setattr(streams, "LONGEST_CLOSING_SECONDS", 0.1)
    stream = make_stream(data / "train")
    stream.close()
    assert stream._thread.is_alive()
    answer.set()
    stream._thread.join()


def test_the_thread_reads_only_a_few_steps_ahead(data, monkeypatch):
    prepared = []
    whole = BatchStream.prepare
    monkeypatch.setattr(BatchStream, "prepare", lambda self, step: prepared.append(step) or whole(self, step))
    with make_stream(data / "train", last_step=10**6) as stream:
        steps = iter(stream)
        for _ in range(5):
            next(steps)
        assert max(prepared) <= 5 + PREFETCHED_STEPS + 1
    assert prepared == list(range(len(prepared)))
