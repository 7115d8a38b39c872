"""Folders that hold the splits of a data set are not pooled, and others are not taken for such."""

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.sources import find_sources
from longmix.data_prep.state import TextSettings
from longmix.data_prep.text import prepare_text


def write(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
    return str(folder)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["wiki.{}.raw", "wiki.{}.tokens", "README.txt"], "wiki.{}.raw"),
        (["{}.txt", "more/book.txt"], "{}.txt"),
        (["{}/a.txt", "{}/b.txt"], "{}"),
        (["set/{}-00000-of-00001.jsonl"], "set/{}-00000-of-00001.jsonl"),
        (["corpus_{}.txt"], "corpus_{}.txt"),
    ],
)
def test_official_splits_are_not_pooled(tmp_path, names, expected):
    splits = ("train", "valid", "test")
    folder = write(tmp_path / "wikitext-103", [name.format(split) for split in splits for name in names])
    train, validation, test = (f"{folder}/{expected.format(split)}" for split in splits)
    with pytest.raises(UserError, match="holds the splits of a data set") as told:
        prepare_text(TextSettings(source=(folder,)), tmp_path / "out")
    assert str(told.value).endswith(f"pooled: use --source {train} --validation {validation} --test {test}")
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()
    for option, file in (("--test", test), ("--text", train)):
        with pytest.raises(UserError) as told:
            find_sources([folder], option=option)
        assert str(told.value).endswith(f"pooled: use {option} {file}")


def test_many_files_of_a_split_are_not_all_told(tmp_path):
    folder = write(tmp_path / "a b", [*(f"train-{part}-of-7.jsonl" for part in range(7)), "dev.jsonl"])
    with pytest.raises(UserError) as told:
        find_sources([folder])
    command = str(told.value).partition(": use ")[2]
    assert command.startswith(f"--source '{folder}/train-0-of-7.jsonl' --source ")
    assert command.endswith(f"train-3-of-7.jsonl' (and 3 more) --validation '{folder}/dev.jsonl'")


def test_other_folders_hold_no_splits(tmp_path):
    names = [
        "train.py",
        "test.py",
        "how-to-train.txt",
        "a-test.txt",
        "test.txt",
        "more/train.txt",
        "trainer.txt",
        "s/test",
    ]
    assert len(find_sources([write(tmp_path, names)])[0].parts) == len(names)
