"""Data sets that are damaged, or not what they say: one clear line each, and nothing read from elsewhere."""

import errno
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import MachineFault, UserError
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64, write_dataset
from longmix.trainer.cli import main
from longmix.trainer.samples import dataset as dataset_module
from longmix.trainer.samples.dataset import ShardedDataset

GOOD = {"input_ids": [0, 7, 8, 1], "document_starts": [0, 2], "labels": [-100, 3, 1, -100]}
COLUMNS = {"input_ids": LIST_INT32, "document_starts": LIST_INT32, "labels": LIST_INT32}
FIELDS = {"split": "train", "split_rule": "test", "vocab_size": 9, "sequence_length": 5, "num_labels": 4}


def write(folder, samples=(GOOD,) * 30, columns=COLUMNS, **fields):
    write_dataset(folder, samples, columns, **{**FIELDS, **fields})
    return folder


def change_manifest(folder, change):
    """Rewrite the manifest of `folder` after `change(values)`."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def replace_shard(folder, table, **options):
    """Put another file in the place of the shard, and its size and hash into the manifest: they tell nothing then."""
    path = folder / "shard-00000.parquet"
    pq.write_table(table, path, **options)

    def change(values):
        values["shards"][0].update(bytes=path.stat().st_size, sha256=sha256_of_file(path))

    change_manifest(folder, change)


def mistake_of(folder, indices=(0,)):
    with pytest.raises(UserError) as caught:
        ShardedDataset(str(folder)).read(np.asarray(indices))
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text


def test_a_disk_that_fails_is_no_damage(tmp_path, monkeypatch):
    folder = write(tmp_path / "set")
    dataset = ShardedDataset(str(folder))

    def failing(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(dataset_module, "parquet_file", failing)
    with pytest.raises(MachineFault, match="Stale file handle"):
        dataset.read(np.arange(2))


def test_a_sound_data_set_is_read(tmp_path):
    (sample,) = ShardedDataset(str(write(tmp_path / "set"))).read(np.asarray([29]))
    assert {name: values.tolist() for name, values in sample.items()} == GOOD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": [0, 9, 8, 1]}, "input_ids holds 9, the manifest's vocabulary allows 0 .. 8"),
        ({"input_ids": [0, -1, 8, 1]}, "input_ids holds -1, the manifest's vocabulary allows 0 .. 8"),
        ({"labels": [-100, 4, 1, 0]}, "labels holds 4, the manifest's num_labels allows 0 .. 3"),
        ({"labels": [-100, -1, 1, 0]}, "labels holds -1, the manifest's num_labels allows 0 .. 3"),
        ({"labels": [0, 1]}, "labels and input_ids of a sample differ in length"),
        ({"document_starts": [0, 4]}, "document_starts of a sample are not 0 and rising offsets within it"),
        ({"document_starts": [0, -4]}, "document_starts of a sample are not 0 and rising"),
        ({"document_starts": [1, 2]}, "document_starts of a sample are not 0 and rising"),
        ({"document_starts": [0, 2, 2]}, "document_starts of a sample are not 0 and rising"),
        ({"document_starts": []}, "document_starts of a sample are not 0 and rising"),
        ({"input_ids": [0, 7, 8, 7, 8, 1], "labels": [0] * 6}, "a sample has 6 tokens, the manifest says at most 5"),
    ],
)
def test_samples_that_contradict_the_manifest_or_each_other(tmp_path, change, message):
    folder = write(tmp_path / "set", [GOOD] * 20 + [{**GOOD, **change}] + [GOOD] * 9)
    assert f"shard-00000.parquet cannot be read as a shard ({message}" in mistake_of(folder)


def test_only_among_positions_may_there_be_some_without_a_label(tmp_path):
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    rows = [{"input_ids": [0, 7, 1], "labels": label} for label in [3] * 29 + [-100]]
    message = "labels holds -100, the manifest's num_labels allows 0 .. 3"
    assert message in mistake_of(write(tmp_path / "set", rows, columns))


def test_a_shard_from_another_tokenizer_is_refused_even_with_its_own_size_and_hash(tmp_path):
    ours, theirs = (
        write(tmp_path / "ours"),
        write(tmp_path / "theirs", [{**GOOD, "input_ids": [0, 70, 8, 1]}] * 30, vocab_size=96),
    )
    shutil.copy(theirs / "shard-00000.parquet", ours)
    shard = Manifest.parse((theirs / "manifest.json").read_bytes(), "").shards[0]
    change_manifest(ours, lambda values: values["shards"][0].update(shard))
    assert "input_ids holds 70, the manifest's vocabulary allows 0 .. 8" in mistake_of(ours)


LISTS = pa.array([[0, 7, 8, 1]] * 30, type=pa.list_(pa.int32()))
STARTS = pa.array([[0, 2]] * 30, type=pa.list_(pa.int32()))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"input_ids": LISTS[:29], "document_starts": STARTS[:29]}, {}, "it holds 29 samples, the manifest says 30"),
        ({"input_ids": LISTS}, {}, "columns input_ids: int32[], the manifest says document_starts: int32[], input"),
        (
            {"input_ids": LISTS, "document_starts": STARTS, "more": LISTS},
            {},
            "it has the columns document_starts: int32[], input_ids: int32[], more: int32[]",
        ),
        ({"input_ids": LISTS.cast(pa.list_(pa.int64())), "document_starts": STARTS}, {}, "input_ids: int64[]"),
        ({"input_ids": LISTS.cast(pa.list_(pa.float32())), "document_starts": STARTS}, {}, "input_ids: float32[]"),
        ({"input_ids": pa.array(["text"] * 30), "document_starts": STARTS}, {}, "input_ids: string"),
        ({"input_ids": pa.array(range(30), pa.int32()), "document_starts": STARTS}, {}, "input_ids: int32,"),
        (
            {"input_ids": pa.array([None, *LISTS[1:].to_pylist()], LISTS.type), "document_starts": STARTS},
            {},
            "column input_ids holds nulls",
        ),
        (
            {"input_ids": pa.array([[0, None]] * 30, LISTS.type), "document_starts": STARTS},
            {},
            "column input_ids holds nulls",
        ),
    ],
)
def test_files_of_other_rows_columns_and_types(tmp_path, columns, options, message):
    plain = {name: COLUMNS[name] for name in ("input_ids", "document_starts")}
    sample = {name: GOOD[name] for name in plain}
    folder = write(tmp_path / "set", [sample] * 30, plain, num_labels=None)
    replace_shard(folder, pa.table(columns), **options)
    text = mistake_of(folder)
    assert "shard-00000.parquet cannot be read as a shard (" in text and message in text


def test_row_groups_that_would_fill_the_memory_are_refused(tmp_path):
    count = 2000
    folder = write(tmp_path / "set", [{"input_ids": [1]}] * count, {"input_ids": LIST_INT32})
    replace_shard(folder, pa.table({"input_ids": pa.array([[1]] * count, LISTS.type)}), row_group_size=count)
    assert "it has a row group of 2000 samples, more than 1024" in mistake_of(folder)


@pytest.mark.parametrize(
    ("columns", "sample", "message"),
    [
        (
            {"labels": SCALAR_INT64},
            {"labels": 1},
            "has the columns labels: neither input_ids nor values, where one of them must be",
        ),
        (
            {"input_ids": LIST_INT32, "document_starts": SCALAR_INT64},
            {"input_ids": [1], "document_starts": 0},
            "column document_starts is int64, which cannot be read here",
        ),
        (
            {"input_ids": LIST_INT32, "values": {"dtype": "float32", "shape": [None, 2]}},
            {"input_ids": [1], "values": [[1.0, 2.0]]},
            "has the columns input_ids, values: both input_ids and values, where one of them must be",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_told_at_the_start(tmp_path, columns, sample, message):
    folder = write(tmp_path / "set", [sample], columns)
    with pytest.raises(UserError) as caught:
        ShardedDataset(str(folder))
    assert message in str(caught.value)


def test_labels_of_a_regression_may_be_any_number(tmp_path):
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_FLOAT32}
    folder = write(tmp_path / "set", [{"input_ids": [1], "labels": -7.5}], columns, num_labels=None)
    assert ShardedDataset(str(folder)).read(np.asarray([0]))[0]["labels"] == -7.5


def lie(*path, value):
    def change(values):
        *parents, last = path
        for name in parents:
            values = values[name]
        values[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lie("samples", value=31), "samples is 31, but the shards hold 30"),
        (lie("samples", value="30"), "samples is '30', but must be a whole number"),
        (lie("samples", value=True), "samples is True, but must be a whole number"),
        (lie("samples", value=10**30), "samples is 1000000000000000000000000000000, but must"),
        (lie("tokens", value=-1), "tokens is -1"),
        (lie("vocab_size", value=0), "vocab_size is 0"),
        (lie("vocab_size", value=9.5), "vocab_size is 9.5"),
        (lie("pad_token_id", value=9), "pad_token_id holds 9, but an id of this vocabulary lies in 0 .. 8"),
        (lie("mask_token_id", value=[1]), "mask_token_id holds [1]"),
        (lie("special_token_ids", value=[1, 70]), "special_token_ids holds 70"),
        (lie("special_token_ids", value="all"), "special_token_ids is 'all', but must be a list"),
        (lie("label_names", value=["a"]), "label_names has 1 names, but num_labels is 4"),
        (lie("label_names", value=[1, 2, 3, 4]), "label_names is [1, 2, 3, 4], but must be a list of texts"),
        *(
            (lie("tolerance", value=wrong), "tolerance is")
            for wrong in (0, -0.1, float("nan"), float("inf"), True, "1")
        ),
        (lie("trained_places", value=0), "trained_places is 0, but must be a whole number from 1"),
        (lie("trained_places", value=3), "trained_places is 3, but there is no column label_places"),
        (lie("split", value=None), "split is None, but must be a text"),
        (lie("packing", value={}), "packing is {}"),
        (lie("report", value=[]), "report is []"),
        (lie("columns", value={}), "columns is {}, but must be a map"),
        (lie("columns", "input_ids", value="int32"), "columns.'input_ids' is 'int32', but must be a map with dtype"),
        (lie("columns", "input_ids", "dtype", value="object"), "columns.'input_ids'.dtype is 'object', allowed: bool"),
        (lie("columns", "input_ids", "shape", value=[0]), "columns.'input_ids'.shape is [0]"),
        (lie("shards", value={}), "shards is {}, but must be a list"),
        (lie("shards", 0, value={"file": "a"}), "shards[0] is {'file': 'a'}, but must be a map with file, samples"),
        (lie("shards", 0, "samples", value=31), "samples is 30, but the shards hold 31"),
        (lie("shards", 0, "samples", value=-30), "shards[0].samples is -30"),
        (lie("shards", 0, "bytes", value="many"), "shards[0].bytes is 'many'"),
        (lie("shards", 0, "bytes", value=7), "manifest.json says 7 bytes: copy or prepare it again"),
        (lie("shards", 0, "sha256", value="no"), "shards[0].sha256 is 'no', but must be 64 hexadecimal digits"),
        (lie("shards", 0, "file", value="shard-00001.parquet"), "shard-00001.parquet is missing"),
        (lie("schema_version", value=True), "schema_version is True, this longmix reads 1"),
        (lie("split", value="\ud800"), "is not valid JSON"),
    ],
)
def test_a_manifest_that_lies_is_told_before_any_shard_is_read(tmp_path, change, message):
    folder = write(tmp_path / "set")
    change_manifest(folder, change)
    text = mistake_of(folder)
    assert str(folder) in text and message in text


@pytest.mark.parametrize(
    "name",
    [
        "../other/shard-00000.parquet",
        "/etc/passwd",
        "..",
        ".",
        "",
        ".hidden",
        "a/b",
        "a\nb",
        "a\0b",
        5,
        "s3://b/c",
        "a::b",
    ],
)
def test_no_shard_lies_outside_of_its_folder(tmp_path, name):
    folder, _ = write(tmp_path / "set"), write(tmp_path / "other")
    change_manifest(folder, lie("shards", 0, "file", value=name))
    assert "but must be the plain name of a file in that folder" in mistake_of(folder)


def test_no_shard_is_named_twice(tmp_path):
    folder = write(tmp_path / "set")

    def change(values):
        values["shards"] *= 2
        values["samples"] *= 2

    change_manifest(folder, change)
    assert "shards[1].file is 'shard-00000.parquet', which an earlier shard has" in mistake_of(folder)


@pytest.mark.parametrize(
    "path", ["/etc", "../../tokenizer", "..", ".", "", "../a/../../b", "a/../../b", "../a\nb", 5, "../a\0"]
)
def test_no_tokenizer_lies_far_from_its_data(tmp_path, path):
    folder = write(tmp_path / "set")
    change_manifest(folder, lie("tokenizer", value={"path": path, "sha256": "0" * 64}))
    assert "must lead to a folder in the data set's or beside it" in mistake_of(folder)


@pytest.mark.parametrize("value", ["../tokenizer", {"path": "../tokenizer"}, {"path": "../tokenizer", "sha256": "x"}])
def test_a_tokenizer_is_named_with_its_hash(tmp_path, value):
    folder = write(tmp_path / "set")
    change_manifest(folder, lie("tokenizer", value=value))
    assert "tokenizer" in mistake_of(folder)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b'"text"'])
def test_manifests_that_are_no_map_of_fields(tmp_path, text):
    folder = write(tmp_path / "set")
    (folder / "manifest.json").write_bytes(text)
    assert "manifest.json" in mistake_of(folder)


@pytest.fixture
def spoilt(data, run_values, write_run_file, tmp_path):
    """spoilt(spoil) -> (run file, data folder): a run over a data set whose shard `spoil(path)` has changed."""

    def make(spoil):
        folder = shutil.copytree(data / "train", tmp_path / "train")
        spoil(folder / "shard-00000.parquet")
        values = run_values(tmp_path / "run", **{"data.train": str(folder), "data.eval": None})
        return write_run_file(tmp_path / "run.yaml", values), folder

    return make


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "shard-00000.parquet has"),
        (lambda path: path.unlink(), "shard-00000.parquet is missing"),
    ],
)
def test_shards_that_are_missing_or_short_are_told_before_a_worker_starts(spoilt, capsys, spoil, message):
    path, _ = spoilt(spoil)
    for verb in (["train", path, "--processes", "2"], ["inspect-order", path, "--step", "1"]):
        assert main(verb) == 2
        text = capsys.readouterr().err
        assert text.startswith("longmix: error: ") and text.count("\n") == 1 and message in text


@pytest.mark.full
def test_a_flipped_bit_ends_a_run_of_two_ranks_with_one_line_and_leaves_the_data_alone(spoilt, longmix):
    def flip(path):
        contents = bytearray(path.read_bytes())
        contents[300] ^= 1
        path.write_bytes(contents)

    path, folder = spoilt(flip)
    before = {path.name: sha256_of_file(path) for path in folder.iterdir()}
    code, output = longmix("train", path, "--processes", "2").wait()
    assert code == 2 and "Traceback" not in output
    told = [line for line in output.splitlines() if line.startswith("longmix: error: ")]
    assert told and all("shard-00000.parquet cannot be read as a shard" in line for line in told)
    assert {path.name: sha256_of_file(path) for path in folder.iterdir()} == before
