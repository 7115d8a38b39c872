"""longmix prepare lego: signs recomputed from the clauses, and which variables have labels."""

import re
from collections import Counter

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.tasks.lego import LegoSettings, make_sample, prepare_lego

TEXT = "abcdefghijklmnopqrstuvwxyz1=;-+"
SMALL = {"train_samples": 30, "validation_samples": 4, "test_samples": 5}


def clauses_of(sample):
    """variable -> (label, sign, what its clause refers to), in the order of the clauses."""
    text = "".join(TEXT[token - 2] for token in sample["input_ids"])
    assert re.fullmatch(r"([a-z]=[-+][a-z1];)+", text)
    labels = list(sample["labels"])
    assert len(labels) == len(text) and all(label == IGNORED for place, label in enumerate(labels) if place % 5)
    return {found[0]: (labels[5 * place], found[2], found[3]) for place, found in enumerate(text.split(";")[:-1])}


def solve(clauses, variable):
    """(sign of a variable, steps to the known one)"""
    _, sign, other = clauses[variable]
    value, steps = (1, 0) if other == "1" else solve(clauses, other)
    return (value if sign == "+" else -value), steps + (other != "1")


@pytest.mark.parametrize(
    ("split", "tested", "labelled"),
    [
        ("train", "all", range(14)),
        ("validation", "untrained", range(14)),
        ("test", "all", range(20)),
        ("test", "untrained", range(14, 20)),
    ],
)
def test_labels_are_the_signs_of_the_variables_of_the_split(split, tested, labelled):
    settings = LegoSettings(tested_variables=tested)
    signs, names, orders = Counter(), Counter(), set()
    for index in range(200):
        sample = make_sample(settings, split, index)
        clauses, places = clauses_of(sample), sample["label_places"].tolist()
        assert len(clauses) == 20
        steps_of = {}
        for variable, (label, _, _) in clauses.items():
            value, steps_of[variable] = solve(clauses, variable)
            assert label == ({1: 1, -1: 0}[value] if steps_of[variable] in labelled else IGNORED)
            signs[value, steps_of[variable]] += 1
            names[variable] += 1
        assert places == [steps_of[variable] for variable in clauses for _ in range(5)]
        assert sorted(steps_of.values()) == list(range(20))  # one chain
        orders.add(tuple(steps_of.values()))
    assert len(orders) == 200 and len(names) == 26
    assert all(60 < signs[value, steps] < 140 for value in (1, -1) for steps in range(20))


def test_the_splits_of_both_tests_have_the_same_inputs():
    every = make_sample(LegoSettings(), "test", 3)
    untrained = make_sample(LegoSettings(tested_variables="untrained"), "test", 3)
    assert every["input_ids"].tolist() == untrained["input_ids"].tolist()
    others = [make_sample(LegoSettings(), "train", 3), make_sample(LegoSettings(seed=1), "test", 3)]
    assert all(other["input_ids"].tolist() != every["input_ids"].tolist() for other in others)


def test_the_folder_tells_the_trainer_what_it_needs(tmp_path, rows_of):
    settings = LegoSettings(**SMALL, variables=26, trained_variables=20)
    made = prepare_lego(settings, tmp_path)
    assert [made[split].samples for split in ("train", "validation", "test")] == [30, 4, 5]
    train = made["train"]
    assert (train.vocab_size, train.pad_token_id, train.mask_token_id, train.num_labels) == (33, 0, 1, 2)
    assert [made[split].trained_places for split in made] == [20] * 3
    assert train.sequence_length == 130 and train.label_names == ["-1", "+1"]
    sample = make_sample(settings, "train", 11)
    assert rows_of(tmp_path / "train")[11] == {name: values.tolist() for name, values in sample.items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variables": 27}, "--variables is 27, but must be 2 to 26"),
        ({"variables": 1}, "--variables is 1"),
        ({"trained_variables": 21}, "--trained-variables is 21, but must be 1 to 20"),
        ({"trained_variables": 0}, "--trained-variables is 0"),
        ({"trained_variables": 20, "tested_variables": "untrained"}, "leaves nothing to test where all 20 variables"),
        ({"tested_variables": "some"}, "--tested-variables is some, but must be all or untrained"),
        ({"validation_samples": 0}, "--validation-samples is 0"),
    ],
)
def test_mistakes_name_the_option_its_value_and_what_is_allowed(options, message):
    with pytest.raises(UserError, match=message):
        LegoSettings(**options)


def test_the_command_makes_the_folder(tmp_path, capsys, run_prepare, rows_of):
    words = [f"--{name.replace('_', '-')}={number}" for name, number in SMALL.items()]
    words += ["--variables", "6", "--trained-variables", "4", "--tested-variables", "untrained", "--seed", "3"]
    assert run_prepare("lego", *words, "--output", tmp_path) == 0
    assert "train: 30 samples, 900 tokens, at most 30 each; 2 classes" in capsys.readouterr().out
    settings = LegoSettings(**SMALL, variables=6, trained_variables=4, tested_variables="untrained", seed=3)
    assert rows_of(tmp_path / "test")[2]["labels"] == make_sample(settings, "test", 2)["labels"].tolist()
