"""LEGO's accuracy of each variable, with places found by following the clauses."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from longmix.data_prep.tasks.lego import LegoSettings, prepare_lego
from longmix.trainer.cli import main
from longmix.trainer.samples.dataset import ShardedDataset

TEXT = "abcdefghijklmnopqrstuvwxyz1=;-+"
SIZES = {"variables": 5, "trained_variables": 3, "train_samples": 64, "validation_samples": 30, "test_samples": 40}


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Folders `all` and `untrained`, whose test splits have labels for all variables, and for the last two."""
    folder = tmp_path_factory.mktemp("lego")
    for tested in ("all", "untrained"):
        prepare_lego(LegoSettings(**SIZES, tested_variables=tested), folder / tested)
    return folder


def shares_by_place(model, folder):
    """place, from 1 -> share of right signs among all variables there."""
    right = {}
    for sample in ShardedDataset(str(folder)).read(np.arange(40)):
        clauses = "".join(TEXT[token - 2] for token in sample["input_ids"]).split(";")[:-1]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(sample["input_ids"], dtype=torch.int64)[None]).logits[0]
        known, sign = "1", 1
        for place in range(1, 6):
            (number,) = (number for number, clause in enumerate(clauses) if clause[3] == known)
            known, sign = clauses[number][0], sign if clauses[number][2] == "+" else -sign
            right.setdefault(place, []).append((logits[5 * number].argmax().item() == 1) == (sign == 1))
    return {place: sum(found) / 40 for place, found in right.items()}


def test_each_variable_has_its_accuracy(train, chains, read_metrics, tmp_path, capsys):
    run, untrained = tmp_path / "run", chains / "untrained"
    changes = {f"data.{key}": str(untrained / name) for key, name in (("train", "train"), ("eval", "validation"))}
    changes |= {"data.test": str(untrained / "test"), "objective.name": "token_classification", "eval.samples": None}
    changes |= {"checkpoint.best": {"metric": "accuracy", "mode": "max"}, "optim.max_steps": 2, "eval.every_steps": 2}
    train(run, **changes)
    expected = shares_by_place(
        AutoModelForTokenClassification.from_pretrained(run / "model").eval(), untrained / "test"
    )
    assert len(set(expected.values())) > 3  # a wrong place would show

    def places(record):
        return {int(name.split("_")[2]): value for name, value in record.items() if name.startswith("accuracy_at_")}

    (test,) = read_metrics(run, "test")
    assert places(test) == pytest.approx({place: expected[place] for place in (4, 5)})
    assert "accuracy_unseen" not in test and test["accuracy"] == pytest.approx((expected[4] + expected[5]) / 2)
    assert all(list(places(record)) == [1, 2, 3] for record in read_metrics(run, "eval"))
    for micro_batch in ("40", "7"):
        capsys.readouterr()
        command = ["evaluate", str(run / "model"), "--data", str(chains / "all" / "test"), "--micro-batch", micro_batch]
        assert main(command) == 0
        found = {name: float(value) for name, value in map(str.split, capsys.readouterr().out.splitlines())}
        assert places(found) == pytest.approx(expected, abs=1e-4) and found["items"] == 200
        assert found["accuracy_seen"] == pytest.approx(sum(expected[place] for place in (1, 2, 3)) / 3, abs=1e-4)
        assert found["accuracy_unseen"] == pytest.approx(test["accuracy"], abs=1e-4)


def test_places_are_no_part_of_self_pretraining(train, chains, read_metrics, tmp_path):
    changes = {"data.train": str(chains / "all" / "train"), "data.eval": str(chains / "all" / "validation")}
    train(tmp_path / "run", **changes, **{"objective.name": "mlm", "optim.max_steps": 2, "eval.every_steps": 2})
    assert all("accuracy_at_1" not in record for record in read_metrics(tmp_path / "run", "eval"))
