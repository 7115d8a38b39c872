"""Dividing labelled texts: official splits stay, others follow from the content alone, and nothing leaks."""

import random
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.shards import LIST_INT32
from longmix.data_prep.tasks.labelled_corpus import CorpusSettings, LabelledCorpus
from longmix.data_prep.tasks.labelled_files import Layout
from longmix.data_prep.tasks.task_folder import describe

LAYOUT = Layout("label", ("text",))
SPLITS = ("train", "validation", "test")


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))
    return str(path)


def rows(count, tag=""):
    return [(("neg", "pos")[number % 2], f"{tag} text {number}") for number in range(count)]


def divide(shortest=1, **settings):
    corpus = LabelledCorpus(CorpusSettings(**settings), LAYOUT, shortest)
    return {name: {(example.label, *example.texts) for example in corpus.examples(name)} for name in SPLITS}


def write(output, **settings):
    corpus = LabelledCorpus(CorpusSettings(**settings), LAYOUT)
    encode = lambda example: {"input_ids": [2 + ord(letter) for letter in example.texts[0]]}  # noqa: E731
    fields = {"vocab_size": 200, "pad_token_id": 0, "sequence_length": 50}
    return corpus.write(output, {"name": "t"}, {"input_ids": LIST_INT32}, encode, **fields)


def test_one_file_is_divided_by_content_wherever_it_stands(tmp_path):
    everything = rows(1000)
    made = divide(source=(table(tmp_path / "a.tsv", everything),))
    assert made["train"] | made["validation"] | made["test"] == set(everything)
    assert sum(map(len, made.values())) == 1000
    assert 70 < len(made["validation"]) < 130 and 160 < len(made["test"]) < 240
    shuffled = random.Random(0).sample(everything, 1000)
    sources = table(tmp_path / "b.tsv", shuffled[:300]), table(tmp_path / "c.tsv", shuffled[300:])
    assert divide(source=sources) == made
    # More of the same data moves nothing from split to split.
    more = divide(source=(table(tmp_path / "d.tsv", everything + rows(500, "more")),))
    assert all(made[name] == more[name] & set(everything) for name in SPLITS)
    other = divide(source=sources, seed=1)
    assert len(other["test"] & made["test"]) < 0.5 * len(made["test"])


def test_the_label_does_not_decide_the_split(tmp_path):
    both = [*rows(300), *(("neg" if label == "pos" else "pos", text) for label, text in rows(300))]
    made = divide(source=(table(tmp_path / "a.tsv", both),))
    texts = {name: {text for _, text in made[name]} for name in SPLITS}
    assert sum(map(len, texts.values())) == 300 and sum(map(len, made.values())) == 600


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.tsv", "test.tsv"),
        ("new_aan_pairs.train.tsv", "new_aan_pairs.test.tsv"),
        ("train/all.tsv", "test/all.tsv"),
        ("train-00000-of-00001.tsv", "test-00000-of-00001.tsv"),
        ("train-00000-of-00001-b42a775f407cee45.tsv", "test-00000-of-00001-04ab7a5e0b0c1d2e.tsv"),
    ],
)
def test_splits_of_a_folder_are_kept_and_validation_is_cut_off_train(tmp_path, train, test):
    table(tmp_path / train, rows(400))
    table(tmp_path / test, rows(100, "test"))
    table(tmp_path / "basic_train.tsv", [("other", "task")])
    made = divide(source=(str(tmp_path),))
    assert made["test"] == set(rows(100, "test"))
    assert made["train"] | made["validation"] == set(rows(400)) and not made["train"] & made["validation"]
    assert 20 < len(made["validation"]) < 60
    named = divide(train=str(tmp_path / Path(train).parts[0]), test=str(tmp_path / Path(test).parts[0]))
    assert named == made


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("reviews_train.tsv", "reviews_test.tsv"),
        ("Train/a.tsv", "Test/a.tsv"),
        ("training_set.tsv", "testing_set.tsv"),
    ],
)
def test_published_splits_are_found_by_other_names_too(tmp_path, train, test):
    table(tmp_path / train, rows(400))
    table(tmp_path / test, rows(100, "test"))
    made = divide(source=(str(tmp_path),))
    assert made["test"] == set(rows(100, "test")) and made["train"] | made["validation"] == set(rows(400))
    table(tmp_path / "more.tsv", rows(5, "more"))
    with pytest.raises(UserError, match=r"holds the splits .*, and more\.tsv: name the ones that are meant"):
        divide(source=(str(tmp_path),))


def test_a_test_split_alone_is_not_trained_on(tmp_path):
    table(tmp_path / "a.tsv", rows(60))
    table(tmp_path / "test.tsv", rows(30, "test"))
    with pytest.raises(UserError, match=r"holds test\.tsv, and no training split by its name: name the splits with"):
        divide(source=(str(tmp_path),))


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev", "eval"])
def test_a_validation_split_has_many_names(tmp_path, name):
    for split, split_rows in (("train", rows(20)), (name, rows(5, "v")), ("test", rows(5, "t"))):
        table(tmp_path / f"{split}.tsv", split_rows)
    assert divide(source=(str(tmp_path),)) == {
        "train": set(rows(20)),
        "validation": set(rows(5, "v")),
        "test": set(rows(5, "t")),
    }


def test_a_share_of_every_split_is_chosen_from_all_classes(tmp_path):
    source = (table(tmp_path / "a.tsv", sorted(rows(4000))),)
    whole, some, fewer = divide(source=source), divide(source=source, share=0.2), divide(source=source, share=0.1)
    for name in SPLITS:
        assert fewer[name] < some[name] < whole[name]
        assert 0.13 < len(some[name]) / len(whole[name]) < 0.27
        assert 0.3 < sum(label == "pos" for label, _ in some[name]) / len(some[name]) < 0.7


def test_what_stands_in_test_is_left_out_of_train_and_every_class_is_counted(tmp_path):
    table(tmp_path / "train.tsv", [*rows(300), *[("rare", f"rare {number}") for number in range(20)]])
    table(tmp_path / "test.tsv", [*rows(40), ("rare", "rare 0"), ("neg", "")])
    made = write(tmp_path / "out", train=str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
    assert made["test"].label_names == ["neg", "pos", "rare"] and made["test"].num_labels == 3
    assert made["test"].report["class_counts"] == [20, 20, 1]
    counts = [made[name].report["class_counts"] for name in ("train", "validation")]
    assert [sum(pair) for pair in zip(*counts, strict=True)] == [130, 130, 19]
    assert sum(made[name].report["left_out"] for name in made) == 41
    rules = {name: made[name].split_rule for name in made}
    assert rules["validation"].startswith("0.1 of the training files' examples, each chosen by a hash of its content")
    assert rules["test"] == "the files' own split; 1 examples of these files with a text below 1 characters left out"
    assert rules["train"].startswith("the training files without what became validation")
    lines = dict(line.split(": ", 1) for line in describe(made, "out"))
    assert lines["test"].endswith("; 1 of its files left out, which hold too little text")
    assert "too little" not in lines["train"] + lines["validation"]


def test_numbers_are_ordered_as_numbers(tmp_path):
    labels = ["10", "9", "-1", "b", "1", "a"]
    source = (table(tmp_path / "a.tsv", [(label, f"{label} {n}") for label in labels for n in range(5)]),)
    assert LabelledCorpus(CorpusSettings(source=source), LAYOUT).classes == ["-1", "1", "9", "10", "a", "b"]


def test_the_same_command_finds_its_own_data_anywhere_and_refuses_others(tmp_path):
    source = table(tmp_path / "a.tsv", rows(200))
    first = write(tmp_path / "out", source=(source,))
    (tmp_path / "moved").mkdir()
    Path(source).rename(tmp_path / "moved" / "a.tsv")
    moved = (str(tmp_path / "moved" / "a.tsv"),)
    assert write(tmp_path / "out", source=moved) == first
    table(Path(moved[0]), rows(201))
    with pytest.raises(UserError, match="already holds other data"):
        write(tmp_path / "out", source=moved)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no data given"),
        ({"test": "a.tsv"}, "no data given"),
        ({"source": ("a",), "train": "b"}, "--source and --train exclude each other"),
        ({"source": ("a",), "validation_share": 0.0}, "--validation-share is 0.0, but must lie between 0 and 1"),
        ({"source": ("a",), "test_share": float("nan")}, "--test-share is nan"),
        ({"source": ("a",), "validation_share": 0.5, "test_share": 0.5}, "nothing is left to train on"),
        ({"source": ("a",), "share": 1.5}, "--share is 1.5"),
        ({"source": ("a",), "seed": -1}, "--seed is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        CorpusSettings(**settings)


def test_data_that_cannot_be_used_are_refused(tmp_path):
    one = table(tmp_path / "one.tsv", [("a", "x"), ("a", "y")])
    with pytest.raises(UserError, match="all examples are of the class 'a'"):
        divide(source=(one,))
    two = table(tmp_path / "two.tsv", rows(10))
    with pytest.raises(UserError, match=r"one\.tsv, line 2: the class 'a' of the test split has no training example"):
        divide(train=two, test=one)
    with pytest.raises(UserError, match="names the same path twice"):
        divide(source=(two, two))
    with pytest.raises(UserError, match="holds no example of at least 100 characters"):
        divide(source=(two,), shortest=100)
    many = table(tmp_path / "many.tsv", [(str(number / 7), "x") for number in range(2000)])
    with pytest.raises(UserError, match=r"many\.tsv, line 1002: more than 1000 classes"):
        divide(source=(many,))
    table(tmp_path / "both" / "train.tsv", rows(10))
    table(tmp_path / "both" / "train" / "all.tsv", rows(10))
    with pytest.raises(UserError, match="holds more than one train split"):
        divide(source=(str(tmp_path / "both"),))
    with pytest.raises(UserError, match="lies inside"):
        write(tmp_path / "both" / "out", train=str(tmp_path / "both"), test=two)
