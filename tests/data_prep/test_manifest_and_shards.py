"""Manifest and shards: what is written is read back, and nothing incomplete passes for whole."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.parquet_columns import parquet_file
from longmix.data_prep.shard_writer import ShardFile, ShardWriter
from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64, write_dataset

COLUMNS = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}


def make_samples(count):
    return [{"input_ids": list(range(index % 5)), "labels": index} for index in range(count)]


def test_dataset_round_trip(tmp_path):
    folder = tmp_path / "set" / "train"
    written = write_dataset(folder, make_samples(600), COLUMNS, split="train", split_rule="all", num_labels=3)
    manifest = Manifest.load(str(folder))
    assert manifest == written
    assert (manifest.samples, manifest.tokens, manifest.num_labels) == (600, 1200, 3)
    (shard,) = manifest.shards
    assert shard["sha256"] == sha256_of_file(folder / shard["file"])
    parquet = pq.ParquetFile(folder / shard["file"])
    assert parquet.read().to_pylist() == make_samples(600)
    assert [parquet.metadata.row_group(index).num_rows for index in range(3)] == [256, 256, 88]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["train"]


def test_shards_split_at_the_given_count_and_keep_order(tmp_path):
    with ShardWriter(tmp_path, COLUMNS, samples_per_shard=10, row_group_samples=4) as writer:
        for sample in make_samples(25):
            writer.write(sample)
    assert [entry["samples"] for entry in writer.entries] == [10, 10, 5]
    rows = [row for entry in writer.entries for row in pq.read_table(tmp_path / entry["file"]).to_pylist()]
    assert rows == make_samples(25)


def test_lists_wait_for_their_row_group_in_the_bytes_of_their_numbers(tmp_path):
    """And the file is the same as from other sequences, which wait as they are."""
    samples = [{"input_ids": list(range(300, 300 + 50 * number)), "labels": number} for number in range(9)]
    others = [{**sample, "input_ids": tuple(sample["input_ids"])} for sample in samples]
    mixed = [others[number] if number % 2 else samples[number] for number in range(9)]
    arrays = [{**sample, "input_ids": np.asarray(sample["input_ids"], dtype=np.int32)} for sample in samples]
    digests = set()
    for number, kind in enumerate((samples, others, mixed, arrays)):
        file = ShardFile(tmp_path / f"{number}.parquet", COLUMNS, row_group_samples=4)
        for sample in kind:
            file.write(sample)
            if kind is samples:
                assert all(one["input_ids"].nbytes == 4 * len(one["input_ids"]) for one in file._buffer)
        digests.add(file.close()["sha256"])
    assert len(digests) == 1
    assert pq.read_table(tmp_path / "0.parquet").to_pylist() == samples


@pytest.mark.parametrize("wrong", [[2**31], ["a"]])
def test_a_list_of_something_else_is_refused(tmp_path, wrong):
    file = ShardFile(tmp_path / "a.parquet", COLUMNS)
    with pytest.raises((pa.ArrowException, TypeError, OverflowError)):
        file.write({"input_ids": wrong, "labels": 0})
    file.abandon()
    assert list(tmp_path.iterdir()) == []


def test_fixed_and_ragged_axes(tmp_path):
    columns = {"values": {"dtype": "float32", "shape": [None, 2]}, "labels": SCALAR_FLOAT32}
    sample = {"values": [[1.0, 2.0], [3.0, 4.0]], "labels": 0.5}
    write_dataset(tmp_path / "set", [sample], columns, split="train", split_rule="all")
    assert pq.read_table(tmp_path / "set" / "shard-00000.parquet").to_pylist() == [sample]


@pytest.mark.parametrize("shape", [[None, 2], [None, None], [None, None, 2], [3, 2]])
def test_arrays_are_written_as_their_lists_are(tmp_path, shape):
    columns = {"values": {"dtype": "float32", "shape": shape}}
    lengths = [3, 3] if shape[0] == 3 else [3, 0, 1, 5]
    arrays = [
        np.arange(index, index + length * 2 ** (len(shape) - 1), dtype=np.float64).reshape(
            length, *[2] * (len(shape) - 1)
        )
        for index, length in enumerate(lengths)
    ]
    for name, convert in (("arrays", np.asarray), ("lists", np.ndarray.tolist)):
        samples = [{"values": convert(array)} for array in arrays]
        write_dataset(tmp_path / name, samples, columns, split="train", split_rule="all")
    found = pq.read_table(tmp_path / "arrays" / "shard-00000.parquet")
    assert found.to_pylist() == [{"values": array.tolist()} for array in arrays]
    assert found.equals(pq.read_table(tmp_path / "lists" / "shard-00000.parquet"))


def test_arrays_of_another_width_are_refused(tmp_path):
    columns = {"values": {"dtype": "float32", "shape": [None, 2]}}
    with pytest.raises(ValueError, match=r"lists of \[3\] entries where 2 are expected"):
        write_dataset(tmp_path / "set", [{"values": np.zeros((4, 3))}], columns, split="train", split_rule="all")


def test_a_failing_source_leaves_the_old_data_set(tmp_path):
    folder = tmp_path / "set"
    write_dataset(folder, make_samples(3), COLUMNS, split="train", split_rule="all")

    def failing():
        yield from make_samples(300)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="fire"):
        write_dataset(folder, failing(), COLUMNS, split="train", split_rule="all")
    assert Manifest.load(folder).samples == 3
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


WRITES_UNTIL_TOLD = """
import sys
from longmix.data_prep.shards import SCALAR_INT64, write_dataset

def samples():
    yield {"labels": 1}
    print("writing", flush=True)
    sys.stdin.readline()

write_dataset(sys.argv[1], samples(), {"labels": SCALAR_INT64}, split="other", split_rule="all")
"""


def test_leftovers_of_killed_processes_are_removed_and_those_who_still_write_are_left_alone(tmp_path):
    folder = tmp_path / "set"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", WRITES_UNTIL_TOLD, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for other in others:
            assert other.stdout.readline() == b"writing\n"
        unfinished = {f".set.{other.pid}.new" for other in others}
        # Of others, whatever they are called.
        others_own = {".set.more.7.new", ".sets.7.new", ".set.7.new.txt", ".set.tmp"}
        for name in others_own:
            (tmp_path / name).mkdir()
        (tmp_path / ".set.7.old").mkdir()
        write_dataset(folder, make_samples(3), COLUMNS, split="train", split_rule="all")
        assert {path.name for path in tmp_path.iterdir()} == {"set", *unfinished, *others_own}
        others[0].kill()
        others[0].wait()
        others[1].communicate(b"\n", timeout=60)
        assert others[1].returncode == 0 and Manifest.load(folder).split == "other"
        write_dataset(folder, make_samples(3), COLUMNS, split="train", split_rule="all")
        assert {path.name for path in tmp_path.iterdir()} == {"set", *others_own}
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_foreign_folder_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=r"holds thesis\.tex, which longmix did not write there"):
        write_dataset(tmp_path, make_samples(1), COLUMNS, split="train", split_rule="all")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_missing_column_and_bad_row_group(tmp_path):
    with pytest.raises(ValueError, match="input_ids"):
        ShardWriter(tmp_path, COLUMNS).write({"labels": 1})
    with pytest.raises(ValueError, match="1024"):
        ShardWriter(tmp_path, COLUMNS, row_group_samples=2048)


def test_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Manifest.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no manifest\.json"):
        Manifest.load(tmp_path)
    folder = tmp_path / "train"
    write_dataset(folder, make_samples(9), COLUMNS, split="train", split_rule="all")
    with pytest.raises(UserError, match="name one of these"):
        Manifest.load(tmp_path)
    shard = folder / "shard-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match="bytes"):
        Manifest.load(folder)
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        Manifest.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"schema_version": 99}, "99"), ({"colour": "red"}, "colour"), ({"split": None}, "split"), (None, "valid JSON")],
)
def test_damaged_manifests_are_refused(tmp_path, change, message):
    folder = tmp_path / "train"
    write_dataset(folder, make_samples(1), COLUMNS, split="train", split_rule="all")
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    if change == {"split": None}:
        del values["split"]
    else:
        values.update(change or {})
    path.write_text("{" if change is None else json.dumps(values))
    with pytest.raises(UserError, match=message):
        Manifest.load(folder)


@pytest.mark.parametrize("name", ["hub:data", "s3:a", "C:", "file:x"])
def test_a_colon_makes_no_url_of_a_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_dataset(Path(name) / "train", make_samples(3), COLUMNS, split="train", split_rule="all")
    assert Manifest.load(f"{name}/train").samples == 3
    assert parquet_file(f"{name}/train/shard-00000.parquet").read().to_pylist() == make_samples(3)
