"""A class for each token: trained, stopped, gone on with, and evaluated on a probe of any model's mixing."""

import pytest
import torch
from transformers import AutoModelForTokenClassification

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.tasks.probe import ProbeSettings, prepare_probe
from longmix.trainer.cli import main
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.configuration import ObjectiveSection

ENGINES = ["zero0", "zero1", "zero2", "zero3", None]


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """A folder with `train` (600 samples) and `validation` (60): copy the left neighbour, 2 to 6 tokens."""
    folder = tmp_path_factory.mktemp("probe")
    prepare_probe(ProbeSettings("copy", 1, "left", length=6, samples=600), folder)
    return folder


@pytest.fixture
def changes(probe):
    return {
        "data.train": str(probe / "train"),
        "data.eval": str(probe / "validation"),
        "objective.name": "token_classification",
        "eval.samples": None,
    }


def figures_of(capsys, *arguments):
    assert main(["evaluate", *(str(argument) for argument in arguments)]) == 0
    return {name: float(value) for name, value in (line.split() for line in capsys.readouterr().out.splitlines())}


@pytest.mark.full
def test_a_model_learns_the_task_and_is_evaluated_alike_everywhere(
    train, read_metrics, probe, changes, tmp_path, capsys
):
    model = {"model.hidden_size": 32, "model.position_embedding_type": "sinusoidal", "model.initializer_range": 0.1}
    train(tmp_path / "run", **{**changes, **model, "optim.lr": 1e-2, "optim.max_steps": 150, "eval.every_steps": 150})
    before, after = read_metrics(tmp_path / "run", "eval")
    assert before["accuracy"] < 0.2 and after["accuracy"] > 0.9 and "perplexity" not in after
    labelled = sum(
        (sample["labels"] != IGNORED).sum() for sample in ShardedDataset(probe / "validation").read(range(60))
    )
    assert before["items"] == after["items"] == labelled
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "model")
    assert type(loaded).__name__ == "TransformerForTokenClassification" and loaded.config.num_labels == 16
    for micro_batch in (60, 7):
        found = figures_of(
            capsys, tmp_path / "run" / "model", "--data", probe / "validation", "--micro-batch", micro_batch
        )
        assert found == pytest.approx({name: after[name] for name in ("loss", "accuracy", "items")}, abs=1e-4)


@pytest.mark.full
@pytest.mark.slow
def test_every_engine_and_way_to_cut_the_batch_takes_the_same_steps(train, read_metrics, changes, tmp_path):
    curves, evaluations = {}, {}
    for engine in ENGINES:
        # Ragged labels: a micro-batch has few of them, or many.
        for micro_batch in (16, 2) if engine in ("zero1", None) else (2,):
            folder, key = tmp_path / f"{engine}-{micro_batch}", (engine, micro_batch)
            changed = {"optim.max_steps": 3, "deepspeed": engine, "batch.micro_batch": micro_batch}
            train(folder, **{**changes, **changed, "eval.every_steps": 3})
            curves[key], evaluations[key] = (
                torch.tensor([[record[name] for name in names] for record in read_metrics(folder, kind)])
                for kind, names in (("train", ("loss", "grad_norm")), ("eval", ("loss",)))
            )
    reference, evaluated = curves[None, 16], evaluations[None, 16]
    assert reference.shape == (3, 2) and (reference[:, 1] > 0.1).all()
    assert abs(evaluated[0] - evaluated[1]) > 1e-4  # the steps move the weights
    for key, curve in curves.items():
        torch.testing.assert_close(curve, reference, rtol=1e-4, atol=1e-5, msg=str(key))
        torch.testing.assert_close(evaluations[key], evaluated, rtol=1e-5, atol=1e-6, msg=str(key))


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(train, changes, tmp_path):
    changes = {**changes, "model.hidden_dropout_prob": 0.1}
    assert train(tmp_path / "whole", **changes).code == 0
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 4}).code == 75
    assert train(tmp_path / "parts", **changes).code == 0
    whole, parts = (
        AutoModelForTokenClassification.from_pretrained(tmp_path / name / "model").state_dict()
        for name in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_best_checkpoint_can_be_chosen_by_accuracy(train, changes, tmp_path):
    best = {"checkpoint.best": {"metric": "accuracy", "mode": "max"}, "eval.every_steps": 2}
    assert train(tmp_path / "run", **changes, **best).state.best_step in (2, 4, 6)


def test_a_model_of_transformers_takes_the_task(train, read_metrics, changes, tmp_path):
    """Its forward divides by the labels of the micro-batch; here the whole batch's count."""
    losses = []
    for micro_batch in (16, 2):
        train(tmp_path / str(micro_batch), "bert", **changes, **{"batch.micro_batch": micro_batch})
        losses.append([record["loss"] for record in read_metrics(tmp_path / str(micro_batch), "train")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_data_and_objective_must_fit(probe, data):
    columns = {"labels": {"dtype": "int64", "shape": []}}
    labelled = Manifest(split="train", split_rule="", columns=columns, num_labels=3)
    with pytest.raises(UserError, match=r"label for each sample: classification or regression"):
        make_objective(ObjectiveSection("token_classification"), 0, labelled, None)
    with pytest.raises(UserError, match=r"objective\.name is classification, .* label for each token"):
        make_objective(ObjectiveSection("classification"), 0, Manifest.load(probe / "train"), None)
    with pytest.raises(UserError, match="needs a data set with a column labels"):
        make_objective(ObjectiveSection("token_classification"), 0, Manifest.load(data / "train"), None)


def test_a_checkpoint_of_fewer_classes_is_refused(probe, train, changes, tmp_path, capsys):
    prepare_probe(ProbeSettings("lookup", 4, samples=20), tmp_path / "lookup")
    lookup = {"data.train": str(tmp_path / "lookup" / "train"), "data.eval": None, "model.vocab_size": 100}
    train(tmp_path / "run", **{**changes, **lookup, "optim.max_steps": 2})
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(probe / "validation")]) == 2
    assert "has 16 labels" in (text := capsys.readouterr().err) and "only 8" in text and text.count("\n") == 1
