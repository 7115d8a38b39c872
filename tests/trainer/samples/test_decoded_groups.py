"""What a process keeps of decoded rows: as many as it reads in turn, in as few bytes as hold them, within a bound."""

import threading
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardWriter
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.trainer.samples import dataset as datasets
from longmix.trainer.samples import decoded_groups
from longmix.trainer.samples.dataset import DECODERS, ShardedDataset
from longmix.trainer.samples.decoded_groups import DecodedGroups, narrowed, rows_in_turn
from longmix.trainer.samples.run_data import open_data
from longmix.trainer.settings import reading

GROUP = 16


@pytest.fixture
def decoded(monkeypatch):
    """How often each row group was decoded, by its file and number."""
    counts = Counter()
    whole = pq.ParquetFile.read_row_group

    def read_row_group(self, group, **options):
        counts[self.metadata.row_group(group).column(0).data_page_offset, self.metadata.num_rows, group] += 1
        return whole(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    return counts


@pytest.fixture
def folder(tmp_path):
    """320 samples of 8 to 15 tokens in one shard, in row groups of 16."""
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    with ShardWriter(tmp_path / "set", columns, row_group_samples=GROUP) as writer:
        for number in range(320):
            writer.write({"input_ids": [65535 - number] * (8 + number % 8), "labels": -(number % 100)})
    manifest = Manifest(split="train", split_rule="test", columns=columns, samples=320, shards=writer.entries)
    manifest.save(tmp_path / "set")
    return tmp_path / "set"


def is_right(sample, number):
    return (
        sample["input_ids"].dtype == np.int32
        and sample["labels"].dtype == np.int64
        and sample["input_ids"].tolist() == [65535 - number] * (8 + number % 8)
        and sample["labels"] == -(number % 100)
    )


@pytest.fixture
def series(tmp_path):
    """20,000 time steps of one variable."""
    columns = {"series": {"dtype": "float32", "shape": [1]}}
    with ShardWriter(tmp_path / "series", columns) as writer:
        for step in range(20_000):
            writer.write({"series": [float(step)]})
    Manifest(
        split="train",
        split_rule="test",
        columns=columns,
        samples=20_000,
        series={"names": ["a"], "mean": [0.0], "scale": [1.0], "lookback": 0, "season": 24},
        shards=writer.entries,
    ).save(tmp_path / "series")
    return tmp_path / "series"


def test_windows_of_a_series_find_their_steps_in_memory(series, decoded):
    values = {
        "run": {"dir": "run"},
        "model": {"model_type": "transformer"},
        "data": {"train": str(series), "partitions": 16, "window": 256},
        "objective": {"name": "forecasting", "input_length": 336, "horizon": 96},
        "batch": {"samples": 16, "micro_batch": 16},
    }
    opened = open_data(reading.from_dict(values, "test"))
    for step in range(64):
        windows = opened.train[0].read(opened.order.share_of_rank(16 * step, 16, 0, 1).sample)
        assert all(len(window["values"]) == 336 and len(window["labels"]) == 96 for window in windows)
    # More than twice the windows' rows, which were 34 row groups: each begins in one of the 256 and ends 431 rows on.
    assert 34 < len(decoded) <= 16 * 4 and set(decoded.values()) == {1}


def test_rows_in_turn_are_whole_row_groups_and_twice_the_windows():
    assert rows_in_turn(16, 256) == 16 * 2 * 256
    assert rows_in_turn(16, 256, 431) == 16 * 4 * 256
    assert rows_in_turn(16, 4096, 431) == 16 * 2 * 4096
    assert rows_in_turn(3, 1) == 3 * 256
    assert rows_in_turn(0, 0) == 0


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 255], "uint8"),
        ([0, 256], "uint16"),
        ([0, 65535], "uint16"),
        ([0, 65536], "int32"),
        ([-100, 100], "int8"),
        ([-1, 128], "int16"),
        ([-100, 40000], "int32"),
        ([], "int32"),
    ],
)
def test_integers_are_kept_in_the_narrowest_type_that_holds_them(values, dtype):
    column = np.asarray(values, dtype=np.int32)
    offsets = np.asarray([0, len(values)], dtype=np.int32)
    kept, same = narrowed({"a": (column, offsets)})["a"]
    assert same is offsets and kept.tolist() == values
    assert kept.dtype == dtype
    real = np.asarray([0.0, 1.0], dtype=np.float32)
    assert narrowed({"a": (real, None)})["a"][0] is real


def test_samples_are_as_the_manifest_says_and_hold_nothing_of_their_row_group(folder):
    dataset = ShardedDataset(str(folder))
    for number, sample in enumerate(dataset.read(np.arange(320))):
        assert is_right(sample, number) and sample["input_ids"].base is None
    tokens = sum(8 + number % 8 for number in range(320))
    # uint16 for ids, a byte for labels, and where each sample of a group begins.
    assert dataset._groups.bytes <= 2 * tokens + 2 * 320 + 4 * 20 * (GROUP + 1)


def test_the_bytes_that_are_kept_have_a_bound_and_the_samples_are_the_same(folder, decoded):
    dataset = ShardedDataset(str(folder))
    dataset._groups.most_bytes = 2000
    generator = np.random.default_rng(0)
    for _ in range(40):
        before = Counter(decoded)
        indices = generator.integers(0, 320, 100)
        assert all(map(is_right, dataset.read(indices), indices.tolist()))
        # What a batch has of a row group is taken from it at once: it may go again.
        assert max((decoded - before).values()) == 1
        assert 1000 < dataset._groups.bytes <= 2000
    assert sum(decoded.values()) > 40 * 10


def test_one_row_group_is_kept_however_large(folder, decoded):
    dataset = ShardedDataset(str(folder))
    dataset._groups.most_bytes = dataset._groups.most_rows = 1
    for number in range(GROUP):
        assert is_right(dataset.read(np.asarray([number]))[0], number)
    assert len(dataset._groups) == 1 and set(decoded.values()) == {1}


def test_what_was_used_longest_ago_goes_first_and_what_is_kept_is_counted():
    def group(rows):
        return {"a": (np.zeros(rows, dtype=np.int64), None)}

    groups = DecodedGroups(most_rows=10, most_bytes=72)
    groups.keep((0, 0), group(4))
    groups.keep((0, 1), group(4))
    groups.use((0, 0))
    groups.keep((0, 2), group(1))
    assert (groups.rows, groups.bytes) == (9, 72)
    groups.keep((0, 3), group(1))
    assert (0, 1) not in groups and (groups.rows, groups.bytes) == (6, 48)
    groups.keep((1, 0), {"a": (np.zeros(6, dtype=np.int8), None)})
    assert (0, 0) not in groups and (groups.rows, groups.bytes) == (8, 22)


def test_ranks_and_data_sets_share_an_eighth_of_the_memory(folder, monkeypatch):
    monkeypatch.setattr(decoded_groups, "host_memory", lambda: 64 * 2**30)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert ShardedDataset(str(folder))._groups.most_bytes == 8 * 2**30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    values = {
        "run": {"dir": "run"},
        "model": {"model_type": "paramixer"},
        "data": {"train": str(folder)},
        "batch": {"samples": 16, "micro_batch": 1},
    }
    (alone,) = open_data(reading.from_dict(values, "test")).all()
    assert alone._groups.most_bytes == 2 * 2**30
    other = folder.rename(folder.parent / "other")
    values["data"] = {"train": str(other), "eval": str(other)}
    assert open_data(reading.from_dict(values, "test")).train[0]._groups.most_bytes == 2 * 2**30
    (folder.parent / "copy").symlink_to(other)
    values["data"] = {"train": str(other), "eval": str(folder.parent / "copy")}
    opened = open_data(reading.from_dict(values, "test"))
    assert [dataset._groups.most_bytes for dataset in opened.all()] == [2**30, 2**30]


def test_row_groups_that_are_missing_are_decoded_side_by_side(folder, monkeypatch):
    side_by_side = threading.Barrier(DECODERS, timeout=60)
    whole = pq.ParquetFile.read_row_group

    def read_row_group(self, group, **options):
        side_by_side.wait()
        return whole(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    indices = np.random.default_rng(1).permutation(3 * DECODERS * GROUP)
    assert all(map(is_right, ShardedDataset(str(folder)).read(indices), indices.tolist()))


def test_no_more_is_decoded_ahead_than_the_threads_have_in_hand():
    begun = []
    results = datasets._worked_on(list(range(50)), lambda item: begun.append(item) or item * item)
    for number, (item, result) in enumerate(results):
        assert (item, result) == (number, number * number)
        assert len(begun) <= number + 1 + DECODERS
    assert sorted(begun) == list(range(50))


def test_the_first_error_is_told_and_the_threads_end():
    before = threading.active_count()

    def work(item):
        if item >= 3:
            raise ValueError(str(item))
        return item

    results = datasets._worked_on(list(range(50)), work)
    assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(ValueError, match=r"^3$"):
        next(results)
    assert threading.active_count() == before
