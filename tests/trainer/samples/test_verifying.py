"""Shards are compared with their hashes while the run computes, a piece at a time."""

import json
import threading

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardWriter
from longmix.data_prep.shards import LIST_INT32
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.stream import PREFETCHED_STEPS, BatchStream
from longmix.trainer.samples import dataset as datasets
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.sections import ObjectiveSection


@pytest.fixture
def folder(tmp_path):
    """150 samples in three shards."""
    columns = {"input_ids": LIST_INT32}
    with ShardWriter(tmp_path / "set", columns, samples_per_shard=50, row_group_samples=16) as writer:
        for number in range(150):
            writer.write({"input_ids": [number % 90 + 5] * 6})
    manifest = Manifest(split="train", split_rule="test", columns=columns, samples=150, shards=writer.entries)
    manifest.vocab_size, manifest.pad_token_id, manifest.mask_token_id = 100, 3, 4
    manifest.save(tmp_path / "set")
    return tmp_path / "set"


def lie_about_hashes(folder):
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    for shard in values["shards"]:
        shard["sha256"] = "0" * 64
    path.write_text(json.dumps(values))


def make_stream(sets):
    objective = make_objective(ObjectiveSection(), 0, sets[0].manifest, None)
    return BatchStream(sets, RunOrder([150], [1.0], 8, 8192, 0), objective, 16, 4, 0, 1, 0, 10**6, 0)


@pytest.mark.parametrize("rest", [0, 1])
def test_a_shard_is_hashed_piece_by_piece(folder, monkeypatch, rest):
    size = (folder / "shard-00000.parquet").stat().st_size
    pieces = next(number for number in range(3, size) if size % number == rest)
    monkeypatch.setattr(datasets, "HASHED_BYTES", size // pieces)
    dataset = ShardedDataset(str(folder))
    assert not dataset.verify_next()
    dataset.read(np.asarray([0, 49]))
    calls = 0
    while dataset.verify_next():
        calls += 1
    assert calls == size // (size // pieces) + 1
    lie_about_hashes(folder)
    dataset = ShardedDataset(str(folder))
    dataset.read(np.asarray([0]))
    assert all(dataset.verify_next() for _ in range(calls - 1))
    with pytest.raises(UserError, match=r"shard-00000\.parquet .*its SHA-256 is not the manifest's"):
        dataset.verify_next()
    assert dataset.verify_next() and not dataset.verify_next()


def test_a_step_waits_for_one_piece_of_a_shard_at_the_most(folder):
    """Whoever verifies takes a step, too: before the next piece another one must have been put in its place."""
    ready, done = threading.Event(), threading.Event()
    waiting = []

    class Watched(ShardedDataset):
        def verify_next(self):
            assert ready.wait(60)
            waiting.append(stream._queue.qsize())
            stream._queue.get()
            if len(waiting) < 20:
                return True
            done.set()
            return False

    stream = make_stream([Watched(str(folder)), Watched(str(folder))])
    with stream:
        ready.set()
        assert done.wait(60)
    assert waiting[:20] == [PREFETCHED_STEPS] * 20


def test_of_two_wrong_shards_one_ends_the_run(folder):
    lie_about_hashes(folder)
    taken = []
    with make_stream([ShardedDataset(str(folder))]) as stream:
        while stream._thread.is_alive():
            stream._thread.join(0.5)
            taken.append(stream._queue.get())
        while not stream._queue.empty():
            taken.append(stream._queue.get())
    assert isinstance(taken[-1], UserError) and "its SHA-256 is not" in str(taken[-1])
    assert sum(isinstance(one, UserError) for one in taken) == 1
