"""The figure accuracy of a regression whose data set says how near an answer must come."""

import hashlib
import json

import numpy as np
import pytest
import torch

import longmix.modeling
from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.long_range import LongRangeSettings, prepare_adding
from longmix.trainer.cli import main
from longmix.trainer.many_runs.read import read_run
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.setup import prepare
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.run_data import open_data
from longmix.trainer.settings.reading import from_dict
from longmix.trainer.settings.sections import ObjectiveSection

SETTINGS = LongRangeSettings(length=6, train_samples=64, validation_samples=50, test_samples=60)


@pytest.fixture(scope="module")
def adding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adding")
    prepare_adding(SETTINGS, folder)
    return folder


@pytest.fixture
def changes(adding):
    data = {f"data.{key}": str(adding / split) for key, split in (("train", "train"), ("eval", "validation"))}
    best = {"checkpoint.best": {"metric": "accuracy", "mode": "max"}}
    return {**data, "data.test": str(adding / "test"), "objective.name": "regression", "eval.samples": None, **best}


def without_tolerance(folder):
    """As data that were prepared before there was such a field."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    del values["tolerance"]
    path.write_text(json.dumps(values))


def test_an_answer_must_come_nearer_than_the_tolerance():
    columns = {"values": {"dtype": "float32", "shape": [None, 2]}, "labels": {"dtype": "float32", "shape": []}}
    manifest = Manifest(split="a", split_rule="b", columns=columns, tolerance=0.25)
    labels, answers = [1.0, 1.0, 1.0, 1.0, 0.0], [0.75, 0.8, 1.2, 1.25, float("nan")]  # the second and the third

    class Answers(torch.nn.Module):
        config = None

        def forward(self, values):
            return type("Output", (), {"logits": torch.tensor(answers)[:, None]})

    batch = {"values": torch.zeros(5, 3, 2), "labels": torch.tensor(labels)}
    objective = make_objective(ObjectiveSection("regression"), 0, manifest, None)
    assert objective.forward(Answers(), batch, 5)[1][1:].tolist() == [2, 5]
    sums, outputs = objective.evaluation(Answers(), batch)
    assert objective.figures(sums, [outputs])["accuracy"] == 2 / 5
    manifest.tolerance = None
    objective = make_objective(ObjectiveSection("regression"), 0, manifest, None)
    assert objective.forward(Answers(), batch, 5)[1][1:].tolist() == [0, 5]
    assert list(objective.figures(sums, [outputs])) == ["loss", "pearson", "spearman", "items"]


def test_the_share_of_right_answers_is_in_every_evaluation(train, changes, read_metrics, tmp_path, capsys):
    train(tmp_path / "run", **changes, **{"optim.max_steps": 4, "eval.every_steps": 2, "checkpoint.every_steps": 2})
    assert all("accuracy" in record for record in read_metrics(tmp_path / "run", "eval"))
    assert "accuracy" in capsys.readouterr().err
    (test,) = read_metrics(tmp_path / "run", "test")
    model = longmix.modeling.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").eval()
    right = 0
    with torch.no_grad():
        for sample in ShardedDataset(changes["data.test"]).read(np.arange(60)):
            answer = model(values=torch.tensor(sample["values"])[None]).logits.item()
            right += -0.04 < answer - float(sample["labels"]) < 0.04
    assert 0 < right < 60 and test["accuracy"] == right / 60
    run = read_run(tmp_path / "run")
    assert (run.metric, run.figures["accuracy"]) == ("accuracy", right / 60)
    assert f"| test_accuracy | {right / 60:.4f} |" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", changes["data.test"]]) == 0
    assert ["accuracy", f"{right / 60:.4f}"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_data_without_a_tolerance_have_no_such_figure(run_values, changes, train, read_metrics, tmp_path, capsys):
    prepare_adding(SETTINGS, tmp_path / "old")
    for key, split in (("train", "train"), ("eval", "validation"), ("test", "test")):
        changes[f"data.{key}"] = str(tmp_path / "old" / split)
        configuration = from_dict(run_values(tmp_path / "run", **changes), "run file")
        if split != "train":
            with pytest.raises(UserError, match=r"has tolerance 0\.04, but .* has None: prepare them together"):
                open_data(configuration)
        without_tolerance(tmp_path / "old" / split)
    with pytest.raises(UserError, match=r"accuracy of a regression needs data with a tolerance.*choose loss"):
        prepare(configuration, 1, torch.device("cpu"))
    configuration.checkpoint.best.metric = "pearson"
    assert prepare(configuration, 1, torch.device("cpu")).objective.tolerance is None
    # Training tells no share of right answers either.
    shorter = {"optim.max_steps": 2, "checkpoint.best": None, "data.test": None}
    train(tmp_path / "told", **{**changes, **shorter})
    records = read_metrics(tmp_path / "told")
    assert {record["kind"] for record in records} >= {"train", "eval"}
    assert not any("accuracy" in record for record in records)
    said = capsys.readouterr().err
    assert "train 2/2  loss" in said and "accuracy" not in said
    # Runs on such data go on: nothing has changed in what their checkpoints noted.
    noted = json.loads((tmp_path / "old" / "test" / "manifest.json").read_text())
    apart = ("report", "words", "series", "trained_places")
    noted = {name: value for name, value in noted.items() if name not in apart}
    expected = hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()
    assert open_data(configuration).fingerprints()["data.test"] == [expected]
