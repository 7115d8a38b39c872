"""Two runs on one task: masked language modelling of its own inputs, then the task from that checkpoint."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longmix.data_prep.shards import LIST_INT32, SCALAR_FLOAT32, SCALAR_INT64, write_dataset
from longmix.trainer.cli import main
from longmix.trainer.models.folder import read_objective
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run import loop
from longmix.trainer.run.setup import prepare
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import ObjectiveSection

# Column of labels, and their number, by objective.
LABELS = {
    "classification": (SCALAR_INT64, 5),
    "regression": (SCALAR_FLOAT32, None),
    "token_classification": (LIST_INT32, 4),
    "pair_classification": (SCALAR_INT64, 2),
}


def sample(generator, objective):
    length = int(generator.integers(4, 13))
    made = {"input_ids": generator.integers(2, 9, length)}
    if objective == "token_classification":
        return {**made, "labels": generator.integers(0, 4, length)}
    if objective == "regression":
        return {**made, "labels": np.float32(generator.normal())}
    if objective == "pair_classification":
        made["input_ids_b"] = generator.integers(2, 9, int(generator.integers(4, 13)))
    return {**made, "labels": int(generator.integers(LABELS[objective][1]))}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with `OBJECTIVE/train` (64 samples) and `OBJECTIVE/validation` (24) for each objective."""
    folder = tmp_path_factory.mktemp("tasks")
    for objective, (labels, num_labels) in LABELS.items():
        columns = {"input_ids": LIST_INT32, "labels": labels}
        if objective == "pair_classification":
            columns["input_ids_b"] = LIST_INT32
        for seed, (split, count) in enumerate({"train": 64, "validation": 24}.items()):
            generator = np.random.default_rng(seed)
            write_dataset(
                folder / objective / split,
                [sample(generator, objective) for _ in range(count)],
                columns,
                split=split,
                split_rule="test",
                vocab_size=9,
                pad_token_id=0,
                mask_token_id=1,
                special_token_ids=[0, 1],
                sequence_length=12,
                num_labels=num_labels,
            )
    return folder


@pytest.fixture
def of(tasks):
    def changes(objective):
        folder = tasks / objective
        return {"data.train": str(folder / "train"), "data.eval": str(folder / "validation"), "eval.samples": None}

    return changes


@pytest.mark.parametrize("objective", LABELS)
def test_the_task_goes_on_from_the_pretrained_encoder(train, run_values, of, tmp_path, objective):
    train(tmp_path / "first", "transformer", **of(objective), **{"optim.max_steps": 2, "objective.name": "mlm"})
    pretrained = json.loads((tmp_path / "first" / "model" / "config.json").read_text())
    assert pretrained["architectures"] == ["TransformerForMaskedLM"] and "problem_type" not in pretrained
    values = run_values(tmp_path / "second", **of(objective), **{"objective.name": objective, "optim.max_steps": 2})
    values["model"] = {"from": str(tmp_path / "first" / "model")}
    checked = reading.from_dict(values, "test")
    model = prepare(checked, 1, torch.device("cpu")).build()

    kept = load_file(tmp_path / "first" / "model" / "model.safetensors")
    encoder = {name: value for name, value in model.state_dict().items() if name.startswith("encoder.")}
    assert encoder and all(torch.equal(value, kept[name]) for name, value in encoder.items())
    assert model.config.num_labels == (LABELS[objective][1] or 1)
    assert model.config.problem_type == ("regression" if objective == "regression" else None)


def test_a_classifier_is_no_regression_because_its_checkpoint_was(train, world, run_values, of, tmp_path):
    train(tmp_path / "first", **of("regression"), **{"optim.max_steps": 2, "objective.name": "regression"})
    for source, objective, labels, problem in (
        ("first", "classification", 5, None),
        ("second", "regression", 1, "regression"),
    ):
        values = run_values(tmp_path / "second", **of(objective), **{"objective.name": objective, "optim.max_steps": 2})
        values["model"] = {"from": str(tmp_path / source / "model")}

        run = prepare(reading.from_dict(values, "test"), 1, torch.device("cpu"))
        assert (run.model_configuration.num_labels, run.model_configuration.problem_type) == (labels, problem)
        if source == "first":
            loop.train(reading.from_dict(values, "test"), world)


@pytest.mark.parametrize("objective", LABELS)
def test_labels_of_the_task_are_not_seen(tasks, objective):
    dataset = ShardedDataset(str(tasks / objective / "train"))
    samples = dataset.read(np.arange(64))
    made = make_objective(ObjectiveSection("mlm"), 0, dataset.manifest, None)
    batch = made.evaluation_batch(samples, np.arange(64))
    other = [{**one, "labels": one["labels"] * 0 + 1} for one in samples]
    again = made.evaluation_batch(other, np.arange(64))
    assert batch.keys() == again.keys() == {"input_ids", "attention_mask", "labels", "target_positions"}
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    # Both sequences of a pair are pretrained on, each with a mask of its own.
    sequences = [one["input_ids"] for one in samples]
    if objective == "pair_classification":
        sequences = [one[name] for one in samples for name in ("input_ids", "input_ids_b")]
    assert len(batch["input_ids"]) == len(sequences)
    for row, hidden, true in zip(batch["input_ids"], batch["labels"], sequences, strict=True):
        restored = torch.where(hidden == -100, row, hidden)
        assert restored[: len(true)].tolist() == true.tolist()
        assert hidden[len(true) :].eq(-100).all()
    assert 0.05 < (batch["labels"] != -100).float().mean() < 0.25


def figures_of(capsys, model, data):
    capsys.readouterr()
    assert main(["evaluate", str(model), "--data", str(data)]) == 0
    return {name: float(value) for name, value in map(str.split, capsys.readouterr().out.splitlines())}


def test_evaluate_gives_the_figures_of_the_objective(train, of, read_metrics, tasks, tmp_path, capsys):
    """On one and the same data set, which any of these could have been trained on."""
    data = tasks / "classification" / "validation"
    logged = {}
    for objective in ("mlm", "clm", "classification"):
        changes = {**of("classification"), "objective.name": objective, "optim.max_steps": 2}
        train(tmp_path / objective, **changes, **{"objective.mask_probability": 0.5})
        logged[objective] = read_metrics(tmp_path / objective, "eval")[-1]
        found = figures_of(capsys, tmp_path / objective / "model", data)
        assert found.pop("mask_probability", None) == (0.15 if objective == "mlm" else None)
        assert found == pytest.approx({name: logged[objective][name] for name in found}, abs=1e-3)
    assert "masked_accuracy" in logged["mlm"] and "token_perplexity" in logged["clm"]
    assert "matthews" in logged["classification"] and "roc_auc" not in logged["classification"]
    # Without the file that says it, the head does.
    for objective in ("mlm", "clm", "classification"):
        (tmp_path / objective / "model" / "objective.json").unlink()
        found = figures_of(capsys, tmp_path / objective / "model", data)
        found.pop("mask_probability", None)
        assert found == pytest.approx({name: logged[objective][name] for name in found}, abs=1e-3)


def test_a_folder_says_its_objective_also_when_exported(train, of, tmp_path, capsys):
    changes = {**of("classification"), "optim.max_steps": 2, "data.eval": None}
    train(tmp_path / "run", **changes, **{"objective.name": "mlm", "objective.mask_probability": 0.3})
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 0
    assert read_objective(str(tmp_path / "out")) == ObjectiveSection("mlm", 0.3)
    assert read_objective("some/name-on-the-hub") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "objective.json is damaged"),
        ("[]", "holds no JSON object"),
        ('{"name": "mmlm"}', "objective.name is 'mmlm'"),
        ('{"name": "mlm", "mask_probability": 7}', "objective.mask_probability is 7.0, but must lie between 0 and 1"),
        ('{"name": "mlm", "more": 1}', "objective.more is not a key"),
    ],
)
def test_a_damaged_objective_is_one_line(train, of, tasks, tmp_path, capsys, text, message):
    train(tmp_path / "run", **of("classification"), **{"optim.max_steps": 2, "objective.name": "mlm"})
    (tmp_path / "run" / "model" / "objective.json").write_text(text)
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(tasks / "classification" / "train")]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
