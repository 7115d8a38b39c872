"""`model.from` with another model than the checkpoint's: what starts anew, and what is left, is named in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM

from longmix.data_prep.errors import UserError
from longmix.trainer.models.loading import load_config, load_model
from longmix.trainer.processes.world import SharedMistake
from longmix.trainer.run import setup
from longmix.trainer.settings import reading

SHAPE = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 96}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A BERT of 12 layers."""
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    BertForMaskedLM(BertConfig(num_hidden_layers=12, **SHAPE)).save_pretrained(folder)
    return str(folder)


def start(checkpoint, auto_class=transformers.AutoModelForMaskedLM, **fields):
    """The notes of a start with changed fields."""
    notes = []
    config = type(load_config(checkpoint))(**{**load_config(checkpoint).to_dict(), **fields})
    load_model(checkpoint, auto_class, config, notes)
    return notes


def test_a_start_that_takes_all_over_says_nothing(checkpoint):
    assert start(checkpoint) == []


def test_layers_that_start_anew_are_named(checkpoint):
    (note,) = start(checkpoint, num_hidden_layers=14)
    assert note == (
        f"note: model.from {checkpoint}: these start anew: bert.encoder.layer.12.*, bert.encoder.layer.13.*; "
        "other fields of model: num_hidden_layers 14 (there 12)"
    )


def test_layers_that_are_not_used_are_named_in_their_order(checkpoint):
    (note,) = start(checkpoint, num_hidden_layers=2)
    layers = ", ".join(f"bert.encoder.layer.{index}.*" for index in range(2, 10))
    assert f"these of it are not used: {layers} and 2 more; other fields" in note and "anew" not in note


def test_a_head_that_starts_anew_is_named(checkpoint):
    (note,) = start(checkpoint, transformers.AutoModelForSequenceClassification, num_labels=3)
    assert (
        "these start anew: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, classifier.weight" in note
    )
    assert "these of it are not used: cls.predictions" in note and "num_labels" not in note


def test_heads_of_another_number_are_named_for_their_weights_have_the_same_shapes(checkpoint):
    assert start(checkpoint, num_attention_heads=4) == [
        f"note: model.from {checkpoint}: other fields of model: num_attention_heads 4 (there 2)"
    ]


def test_weights_of_other_shapes_are_refused_by_name(checkpoint):
    with pytest.raises(UserError) as caught:
        start(checkpoint, intermediate_size=16)
    assert "the weights have other shapes than the fields of model say: bert.encoder.layer.0.inter" in str(caught.value)
    assert "(8,) for (16,)" in str(caught.value) and str(caught.value).endswith(" and 28 more")


def test_a_run_folder_is_what_a_run_starts_from(checkpoint, run_values, tmp_path):
    values = run_values(tmp_path / "second", model={"from": str(Path(checkpoint).parent)})
    prepared = setup.prepare(reading.from_dict(values, "test"), 1, torch.device("cpu"))
    assert prepared.start.model == {"from": checkpoint} and prepared.model_configuration.num_hidden_layers == 12
    assert prepared.configuration.model == {"from": str(Path(checkpoint).parent)}  # as the run file has it


@pytest.mark.full
def test_a_run_says_what_starts_anew(train, tmp_path, capsys):
    train(tmp_path / "first", **{"optim.max_steps": 1, "optim.warmup_steps": 0})
    capsys.readouterr()
    model = {"from": str(tmp_path / "first" / "model"), "num_hidden_layers": 2}
    train(tmp_path / "second", **{"model": model, "optim.max_steps": 1, "optim.warmup_steps": 0})
    output = capsys.readouterr()
    assert (output.out + output.err).count(
        "these start anew: encoder.layers.1.*; other fields of model: num_hidden"
    ) == 1


def test_a_run_goes_on_from_its_own_checkpoint_whatever_became_of_what_it_started_from(train, tmp_path):
    train(tmp_path / "first", **{"optim.max_steps": 1, "optim.warmup_steps": 0})
    source = tmp_path / "first" / "model"
    model = {"model": {"from": str(source), "hidden_dropout_prob": 0.2}}
    whole, stopped, moved = (tmp_path / name for name in ("whole", "stopped", "moved"))
    assert train(whole, **model).code == 0
    for run in (stopped, moved):
        assert train(run, **model, **{"run.stop_at_step": 3}).code == 75
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "hidden_act": "relu", "layer_norm_eps": 1e-3}))
    assert train(stopped, **model).code == 0
    shutil.rmtree(tmp_path / "first")
    assert train(moved, **model).code == 0
    for run in (stopped, moved):
        for name in ("config.json", "model.safetensors"):
            assert (run / "model" / name).read_bytes() == (whole / "model" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "before", "after"), [("config.json", b"gelu", b"relu"), ("model.safetensors", b"", b"")]
)
def test_its_model_is_that_of_a_whole_checkpoint(train, tmp_path, name, before, after):
    train(tmp_path / "first", **{"optim.max_steps": 1, "optim.warmup_steps": 0})
    settings = {"model": {"from": str(tmp_path / "first" / "model")}, "checkpoint.keep": 9}
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(whole, **settings).code == 0
    assert train(run, **settings, **{"run.stop_at_step": 4}).code == 75
    damaged = run / "checkpoints" / "step-00000004" / "model" / name
    content = damaged.read_bytes()
    damaged.write_bytes(
        content.replace(before, after) if before else content[:-4] + bytes(map((255).__sub__, content[-4:]))
    )
    assert train(run, **settings).code == 0
    for written in ("config.json", "model.safetensors"):
        assert (run / "model" / written).read_bytes() == (whole / "model" / written).read_bytes()


def test_a_field_beside_what_a_run_started_from_is_not_left_out_later(train, tmp_path):
    """Its checkpoint's model has it, whatever the run file says no longer."""
    train(tmp_path / "first", **{"optim.max_steps": 1, "optim.warmup_steps": 0})
    source, run = {"from": str(tmp_path / "first" / "model")}, tmp_path / "second"
    train(run, **{"model": {**source, "hidden_dropout_prob": 0.2}, "run.stop_at_step": 3})
    allowed = {"run.allow_changes": ["model"]}
    with pytest.raises(SharedMistake, match=r"began with model\.hidden_dropout_prob=0\.2 beside model\.from"):
        train(run, model=source, **allowed)
    assert train(run, model={**source, "hidden_dropout_prob": 0.0}, **allowed).code == 0
    assert json.loads((run / "model" / "config.json").read_text())["hidden_dropout_prob"] == 0.0
