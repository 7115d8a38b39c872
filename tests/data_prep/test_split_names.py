"""Folders that hold the splits of a data set are not pooled, and others are not taken for such."""

from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.split_names import refuse_missing_parts
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.text.sources import find_sources
from longmix.data_prep.text.state import TextSettings


def write(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
    return str(folder)


@pytest.mark.parametrize(
    ("names", "expected", "others"),
    [
        (["wiki.{}.raw", "wiki.{}.tokens", "README.txt"], "wiki.{}.raw", 4),
        (["{}.txt", "more/book.txt"], "{}.txt", 1),
        (["{}/a.txt", "{}/b.txt"], "{}", 0),
        (["set/{}-00000-of-00001.jsonl"], "set/{}-00000-of-00001.jsonl", 0),
        (["corpus_{}.txt"], "corpus_{}.txt", 0),
        (["imdb/{}/pos/1.txt", "imdb/{}/neg/1.txt", "other/{}/1.txt", "README.txt"], "imdb/{}", 4),
        (["wikitext/raw/{}/00.txt", "wikitext/raw/notes.txt"], "wikitext/raw/{}", 1),
        (["{}.csv"], "{}.csv", 0),
        (["docs/{}.md"], "docs/{}.md", 0),
        (["glue.{}.tsv"], "glue.{}.tsv", 0),
        (["{}_de.txt", "{}_en.txt"], "{}_de.txt", 3),
        (["{}_en_01.txt"], "{}_en_01.txt", 0),
    ],
)
def test_official_splits_are_not_pooled(tmp_path, names, expected, others):
    splits = ("train", "valid", "test")
    folder = write(tmp_path / "wikitext-103", [name.format(split) for split in splits for name in names])
    train, validation, test = (f"{folder}/{expected.format(split)}" for split in splits)
    with pytest.raises(UserError, match="holds the splits of a data set") as told:
        prepare_text(TextSettings(source=(folder,)), tmp_path / "out")
    rest = f" (and {others} other file{'s' if others > 1 else ''}, if wanted)" if others else ""
    assert str(told.value).endswith(f"pooled: use --source {train} --validation {validation} --test {test}{rest}")
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()
    for option, file in (("--test", test), ("--text", train)):
        with pytest.raises(UserError) as told:
            find_sources([folder], option=option)
        assert str(told.value).endswith(f"pooled: use {option} {file}{rest}")


def test_many_files_of_a_split_are_not_all_told(tmp_path):
    folder = write(tmp_path / "a b", [*(f"train-{part}-of-7.jsonl" for part in range(7)), "dev.jsonl"])
    with pytest.raises(UserError) as told:
        find_sources([folder])
    command = str(told.value).partition(": use ")[2]
    assert command.startswith(f"--source '{folder}/train-0-of-7.jsonl' --source ")
    assert command.endswith(f"train-3-of-7.jsonl' (and 3 more) --validation '{folder}/dev.jsonl'")


def test_shards_named_by_a_hash_are_splits_too(tmp_path):
    names = ["train-00000-of-00001-a09b74b3ef9c3b56.parquet", "test-00000-of-00001-b42f027d5f4f3ef2.parquet"]
    with pytest.raises(UserError, match="holds the splits of a data set"):
        find_sources([write(tmp_path / "data", names)])


def test_other_folders_hold_no_splits(tmp_path):
    names = [
        "train.py",
        "test.py",
        "code.train.c",
        "code.test.c",
        "train_en.txt",
        "test_de.txt",
        "one/train/a.txt",
        "two/test/a.txt",
        "how-to-train.txt",
        "a-test.txt",
        "test.txt",
        "more/train.txt",
        "trainer.txt",
        "s/test",
    ]
    assert len(find_sources([write(tmp_path, names)])[0].parts) == len(names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
            r"2 of the 3 parts of train-\*\.parquet .00001 ",
        ),
        (["train-00000-of-00002.parquet", "train-00000-of-00001.parquet"], r"parts of 1 and 2 of train-\*\.parquet"),
        (["x-1-of-3", "x-3-of-3"], r"2 of the 3 parts of x-\* .00002 is missing"),
        (["x-00001-of-00002-0123456789abcdef.parquet"], "1 of the 2 parts .*00000 is missing"),
        (["x-00000-of-999999999.csv"], "1 of the 999999999 parts"),
        (["x-00000-of-00002-0123456789abcdef.parquet", "x-00001-of-00002-fedcba9876543210.parquet"], None),
        (["x-1-of-2", "x-2-of-2", "y-0-of-2", "y-1-of-2", "z.csv", "one-of-many.csv", "x-0-of-1.csv"], None),
    ],
)
def test_a_part_is_not_taken_for_the_whole(names, message):
    if message is None:
        refuse_missing_parts(map(Path, names))
        return
    with pytest.raises(UserError, match=message):
        refuse_missing_parts(map(Path, names))
