"""Folders of tasks: made once, finished after an interruption, no sample in two splits."""

import shutil

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.data_prep.tasks.task_folder import Split, describe, kept_in, write_task

COLUMNS = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}


def split(*rows, label=0):
    return Split(lambda: ({"input_ids": list(row), "labels": label} for row in rows), "by hand")


def write(folder, settings=None, **splits):
    fields = {"vocab_size": 9, "pad_token_id": 0, "sequence_length": 4, "num_labels": 2}
    return write_task(folder, settings or {"name": "t"}, COLUMNS, splits, **fields)


def rows(folder):
    import pyarrow.parquet as pq

    found = [pq.read_table(path).column("input_ids").to_pylist() for path in sorted(folder.glob("*.parquet"))]
    return [row for rows in found for row in rows]


def test_what_stands_in_test_or_validation_is_not_trained_on(tmp_path):
    made = write(
        tmp_path / "t",
        train=split([2], [3], [3], [4, 5], [6], label=1),
        validation=split([6], [7]),
        test=split([4, 5], [7]),
    )
    assert list(made) == ["train", "validation", "test"]
    assert rows(tmp_path / "t" / "train") == [[2], [3], [3]]  # twice in one split is nobody's leak
    assert rows(tmp_path / "t" / "validation") == [[6]]
    assert rows(tmp_path / "t" / "test") == [[4, 5], [7]]
    assert [made[name].report["left_out"] for name in made] == [2, 1, 0]
    lines = list(describe(made, tmp_path / "t"))
    assert lines[0] == (
        "train: 3 samples, 3 tokens, at most 1 each; 2 classes (0: 0, 1: 3); 2 left out that stand in another split too"
    )
    # The longest that is there, and not the longest that was allowed; an older longmix noted that one alone.
    assert lines[2].startswith("test: 2 samples, 3 tokens, at most 2 each")
    assert lines[-1] == f"written to {tmp_path / 't'}: train/, validation/, test/"
    assert [made[name].report["class_counts"] for name in made] == [[0, 3], [1, 0], [2, 0]]
    assert Manifest.load(tmp_path / "t" / "train") == made["train"]
    del made["test"].report["longest"]
    assert "at most 4 each" in list(describe(made, tmp_path / "t"))[2]


def test_the_root_of_a_volume_is_an_output(tmp_path):
    (tmp_path / "lost+found").mkdir()
    write(tmp_path, train=split([2]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost+found", "train"]


def test_the_inputs_alone_are_compared_with_their_shapes(tmp_path):
    values = {"values": {"dtype": "float32", "shape": [None, 2]}, "labels": SCALAR_INT64}
    one = {"values": np.ones((2, 2)), "labels": 0}
    splits = {
        "train": Split(lambda: [one, {**one, "values": np.ones((1, 2))}], "by hand"),
        "test": Split(lambda: [{**one, "labels": 1}], "by hand"),
    }
    made = write_task(tmp_path / "t", {"name": "t"}, values, splits, sequence_length=2)
    assert made["train"].samples == 1 and made["train"].report["left_out"] == 1


def test_a_finished_folder_stays_and_an_unfinished_one_is_finished(tmp_path):
    splits = {"train": split([2], [3]), "test": split([3])}
    first = write(tmp_path / "t", **splits)
    untouched = (tmp_path / "t" / "test" / "manifest.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "t" / "train")
    assert write(tmp_path / "t", **splits) == first
    assert (tmp_path / "t" / "test" / "manifest.json").stat().st_mtime_ns == untouched
    assert rows(tmp_path / "t" / "train") == [[2]]


def test_another_folder_is_refused(tmp_path):
    write(tmp_path / "t", train=split([2]))
    with pytest.raises(UserError, match=r"already holds other data \(train\)"):
        write(tmp_path / "t", settings={"name": "t", "seed": 1}, train=split([2]))


def test_a_split_with_nothing_left_is_told_and_not_made(tmp_path):
    with pytest.raises(UserError, match=r"nothing is left for the split train \(1 stand in another split\)"):
        write(tmp_path / "t", train=split([2]), test=split([2]))
    assert not (tmp_path / "t").exists()
    # The corrected command can use the same folder at once.
    assert write(tmp_path / "t", settings={"name": "t", "seed": 1}, train=split([3]), test=split([2]))["train"].samples


def test_an_interrupted_run_keeps_what_it_has_made(tmp_path):
    def interrupted():
        yield {"input_ids": [3], "labels": 0}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t", train=Split(interrupted, "by hand"), test=split([2]))
    assert rows(tmp_path / "t" / "test") == [[2]] and not (tmp_path / "t" / "train").exists()


def test_data_that_are_refused_leave_nothing_of_an_earlier_interrupted_run_either(tmp_path):
    def ended_by(error):
        yield {"input_ids": [3], "labels": 0}
        raise error

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t", train=Split(lambda: ended_by(KeyboardInterrupt()), "by hand"), test=split([2]))
    with pytest.raises(UserError, match="row 2 is wrong"):
        write(tmp_path / "t", train=Split(lambda: ended_by(UserError("row 2 is wrong")), "by hand"), test=split([2]))
    assert not (tmp_path / "t").exists()


def test_what_somebody_has_added_to_a_finished_split_outlives_a_refusal(tmp_path):
    write(tmp_path / "t", test=split([2]), validation=split([3]))
    (tmp_path / "t" / "test" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="nothing is left for the split train"):
        write(tmp_path / "t", train=split([2]), test=split([2]), validation=split([3]))
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["test"]
    assert (tmp_path / "t" / "test" / "notes.txt").read_text() == "mine"


def test_a_pair_is_turned_around_as_a_whole():
    def pair(first, second):
        (ids, places), (ids_b, places_b) = first, second
        return {"input_ids": [ids], "coordinates": [places], "input_ids_b": [ids_b], "coordinates_b": [places_b]}

    test = [pair((2, 5), (3, 6))]
    train = [pair((3, 6), (2, 5)), pair((2, 6), (3, 5)), pair((2, 5), (2, 5))]
    splits = {name: Split(lambda rows=rows: rows, "by hand") for name, rows in (("train", train), ("test", test))}
    assert list(kept_in("train", splits)) == train[1:]
