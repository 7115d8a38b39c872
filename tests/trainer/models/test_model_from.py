"""`model.from` with another model than the checkpoint's: what starts anew, and what is left, is named in one line."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM

from longmix.data_prep.errors import UserError
from longmix.trainer.models.loading import load_config, load_model
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
