"""longmix prepare adding, temporal-order: targets recomputed from what a model sees."""

from collections import Counter

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.long_range import (
    LongRangeSettings,
    make_adding_sample,
    make_temporal_order_sample,
    prepare_adding,
    prepare_temporal_order,
)

SMALL = {"length": 16, "train_samples": 30, "validation_samples": 4, "test_samples": 5}
LENGTHS = [2, 3, 128, 2048, 32768]


@pytest.mark.parametrize("length", LENGTHS)
def test_adding_targets(length):
    settings = LongRangeSettings(length=length)
    for index in range(3 if length > 2048 else 20):
        sample = make_adding_sample(settings, "train", index)
        assert sample["values"].shape == (length, 2) and sample["values"].dtype == np.float32
        pairs = sample["values"].tolist()
        marked = [number for number, mark in pairs if mark == 1]
        assert len(marked) == 2 and sum(mark == 0 for _, mark in pairs) == length - 2
        assert all(-1 <= number <= 1 for number, _ in pairs)
        assert float(sample["labels"]) == pytest.approx(0.5 + marked[0] / 4 + marked[1] / 4, abs=1e-7)


def test_adding_numbers_are_uniform_and_marks_lie_anywhere():
    settings = LongRangeSettings(length=8)
    samples = [make_adding_sample(settings, "test", index) for index in range(3000)]
    numbers = np.stack([sample["values"][:, 0] for sample in samples])
    assert np.histogram(numbers, bins=4, range=(-1, 1))[0] / numbers.size == pytest.approx([0.25] * 4, abs=0.01)
    pairs = Counter(tuple(np.flatnonzero(sample["values"][:, 1])) for sample in samples)
    assert len(pairs) == 28 and all(60 < count < 160 for count in pairs.values())  # 107 each


@pytest.mark.parametrize("length", LENGTHS)
def test_temporal_order_targets(length):
    settings = LongRangeSettings(length=length)
    for index in range(3 if length > 2048 else 20):
        sample = make_temporal_order_sample(settings, "train", index)
        text = "".join("abcdXY"[token - 2] for token in sample["input_ids"])
        assert len(text) == length
        assert ["XX", "XY", "YX", "YY"].index(text.translate(str.maketrans("", "", "abcd"))) == sample["labels"]


def test_temporal_order_is_balanced_and_signals_lie_anywhere():
    settings = LongRangeSettings(length=8)
    samples = [make_temporal_order_sample(settings, "test", index) for index in range(3000)]
    labels = Counter(sample["labels"] for sample in samples)
    assert all(650 < labels[label] < 850 for label in range(4))
    pairs = Counter(tuple(np.flatnonzero(sample["input_ids"] >= 6)) for sample in samples)
    assert len(pairs) == 28 and all(60 < count < 160 for count in pairs.values())
    assert set(np.concatenate([sample["input_ids"] for sample in samples])) == set(range(2, 8))


@pytest.mark.parametrize("make", [make_adding_sample, make_temporal_order_sample])
def test_samples_depend_on_seed_split_and_number_alone(make):
    settings = LongRangeSettings(**SMALL)
    name = "values" if make is make_adding_sample else "input_ids"
    alone = make(settings, "train", 13)[name].tolist()
    assert alone == make(settings, "train", 13)[name].tolist()
    others = [
        make(settings, "test", 13),
        make(settings, "train", 12),
        make(LongRangeSettings(**SMALL, seed=1), "train", 13),
    ]
    assert all(other[name].tolist() != alone for other in others)


def test_the_folders_tell_the_trainer_what_it_needs(tmp_path, rows_of):
    settings = LongRangeSettings(**SMALL)
    adding = prepare_adding(settings, tmp_path / "adding")
    assert [adding[split].samples for split in ("train", "validation", "test")] == [30, 4, 5]
    assert adding["train"].columns["values"] == {"dtype": "float32", "shape": [None, 2]}
    assert adding["train"].columns["labels"] == {"dtype": "float32", "shape": []}
    assert [adding[split].tolerance for split in adding] == [0.04] * 3
    assert adding["train"].num_labels is None and adding["train"].sequence_length == 16
    sample = make_adding_sample(settings, "validation", 3)
    row = {"values": sample["values"].tolist(), "labels": float(sample["labels"])}
    assert rows_of(tmp_path / "adding" / "validation")[3] == row

    order = prepare_temporal_order(settings, tmp_path / "order")["train"]
    assert (order.vocab_size, order.pad_token_id, order.mask_token_id, order.num_labels) == (8, 0, 1, 4)
    assert order.tolerance is None
    assert order.label_names == ["X,X", "X,Y", "Y,X", "Y,Y"] and order.tokens == 16 * order.samples
    with pytest.raises(UserError, match="already holds other data"):
        prepare_temporal_order(settings, tmp_path / "adding")


def test_a_folder_of_adding_without_the_tolerance_is_not_taken_for_a_finished_one(tmp_path):
    settings = LongRangeSettings(**SMALL)
    made = prepare_adding(settings, tmp_path / "adding")
    assert prepare_adding(settings, tmp_path / "adding") == made  # as it was made: it stays
    older = Manifest.load(tmp_path / "adding" / "train")
    older.tolerance = None
    older.save(tmp_path / "adding" / "train")
    with pytest.raises(UserError, match=r"already holds other data \(train\): choose another folder, or empty it"):
        prepare_adding(settings, tmp_path / "adding")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "--length is 1, but must be 2 to 131072"),
        ({"length": 10**12}, "--length is 1000000000000, but must be 2 to 131072"),
        ({"train_samples": 0}, "--train-samples is 0, but must be at least 1"),
        ({"seed": -2}, "--seed is -2"),
    ],
)
def test_mistakes_name_the_option_its_value_and_what_is_allowed(options, message):
    with pytest.raises(UserError, match=message):
        LongRangeSettings(**options)


@pytest.mark.parametrize("kind", ["adding", "temporal-order"])
def test_the_commands_make_the_folders(tmp_path, capsys, kind, run_prepare, rows_of):
    words = [f"--{name.replace('_', '-')}={number}" for name, number in SMALL.items()]
    assert run_prepare(kind, *words, "--seed", "3", "--output", tmp_path) == 0
    assert "train: 30 samples" in capsys.readouterr().out
    make = make_adding_sample if kind == "adding" else make_temporal_order_sample
    sample = make(LongRangeSettings(**SMALL, seed=3), "train", 7)
    assert rows_of(tmp_path / "train")[7] == {name: np.asarray(value).tolist() for name, value in sample.items()}
