"""What a run needs before its first step: every mistake is told, whatever else is wrong; the notes on a run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.trainer.run import setup
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import reading


@pytest.fixture
def prepared(run_values, tmp_path):
    """prepared(**changes) -> Prepared of a tiny run on one CPU."""

    def make(**changes):
        return prepare(reading.from_dict(run_values(tmp_path / "run", **changes), "test"), 1, torch.device("cpu"))

    return make


def mistakes_of(prepared, **changes):
    with pytest.raises(UserError) as caught:
        prepared(**changes)
    return str(caught.value)


def test_mistakes_in_data_objective_and_model_do_not_hide_each_other(prepared, data, tmp_path):
    model = {"model_type": "transformer", "hidden_size": 15, "num_attention_heads": 2}
    missing = {"data.eval": str(tmp_path / "one"), "model": model, "objective.name": "classification"}
    first_is_there = mistakes_of(prepared, **missing)
    for expected in ("one does not exist", "objective classification needs", "model: num_attention_heads is 2"):
        assert expected in first_is_there
    text = mistakes_of(prepared, **{**missing, "data.train": str(tmp_path / "two")})
    for expected in ("one does not exist", "two does not exist", "model: num_attention_heads is 2"):
        assert text.count(expected) == 1


@pytest.mark.parametrize("field", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_noted_where_the_number_of_processes_shows(prepared, field):
    run = prepared(**{f"model.{field}": 0.1})
    (note,) = run.notes(run.build(), 2)
    assert "with dropout another number of processes gives other losses" in note
    assert prepared().notes(prepared().build(), 2) == []


def test_gradients_that_are_summed_up_in_bf16_are_noted(prepared):
    run = prepared(deepspeed="zero0", precision="bf16")
    (note,) = run.notes(run.build(), 1)
    assert note.startswith(
        "note: at ZeRO stage 0, and with an offloaded optimizer at 1 and 2, DeepSpeed sums gradients"
    )
    for changes in (
        {"deepspeed": "zero1"},
        {"deepspeed": None},
        {"deepspeed": "zero0", "precision": "fp32"},
        {"deepspeed": "zero0", "batch.micro_batch": 16},
    ):
        run = prepared(**{"precision": "bf16", **changes})
        assert run.notes(run.build(), 1) == []


def test_at_stage_3_layers_are_compiled_in_pieces_and_no_whole_model(prepared):
    run = prepared(deepspeed="zero3", **{"run.compile": "layer"})
    (note,) = run.notes(run.build(), 1)
    assert note.startswith("note: at ZeRO stage 3 the graph of a compiled layer ends before each of its modules")
    assert prepared(deepspeed="zero2", **{"run.compile": True})
    text = mistakes_of(prepared, deepspeed="zero3", **{"run.compile": True})
    assert "run.compile is true, but at ZeRO stage 3 of zero3 a graph of the whole model" in text


def test_recurrent_positions_let_documents_see_each_other(prepared):
    run = prepared(**{"model.position_embedding_type": "gru"})
    (note,) = run.notes(run.build(), 1)
    assert "documents that share a row see each other in transformer" in note
    run = prepared(**{"model.position_embedding_type": "learned"})
    assert run.notes(run.build(), 1) == []


def test_an_offloaded_optimizer_that_is_compiled_is_noted(prepared, tmp_path):
    path = tmp_path / "ds.json"
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    path.write_text(json.dumps(offload))
    run = prepared(deepspeed=str(path))
    (note,) = run.notes(run.build(), 1)
    assert "compiles" in note and f'"torch_adam": true in optimizer.params of {path}' in note
    path.write_text(json.dumps({**offload, "optimizer": {"params": {"torch_adam": True}}}))
    assert run.notes(run.build(), 1) == []


def test_a_checkpoint_is_never_chosen_on_the_test_split(prepared, data, write_data, tmp_path):
    """Neither by its name, nor under another one: what is held out is told by its shards."""
    best = {"checkpoint.best": {"metric": "loss", "mode": "min"}}
    for name, split in (("test", "test"), ("copy", "validation")):
        write_data(tmp_path / name, 12, 3, split=split)
    test, copy = str(tmp_path / "test"), str(tmp_path / "copy")
    assert f"data.eval is {test}, a test split" in mistakes_of(prepared, **best, **{"data.eval": test})
    shared = {"data.eval": copy, "data.test": test}
    assert f"holds the samples of data.eval, {copy}" in mistakes_of(prepared, **best, **shared)
    shared = {"data.train": copy, "data.test": test}
    assert f"holds the samples of data.train, {copy}" in mistakes_of(prepared, **best, **shared)
    assert prepared(**best, **{"data.test": test}).data.test is not None


@pytest.mark.parametrize("share", [0.02, 0.04])
def test_whole_words_of_text_without_spaces_are_warned_of(share, prepared, monkeypatch, tmp_path):
    run = prepared()
    objective = replace(run.configuration.objective, whole_word=True)
    run = replace(run, tokenizer=tmp_path, configuration=replace(run.configuration, objective=objective))
    monkeypatch.setattr(setup, "load_tokenizer", lambda folder: folder)
    monkeypatch.setattr(setup, "word_starts", lambda tokenizer: np.arange(100) < 100 * share)
    notes = run.notes(run.build(), 1)
    assert len(notes) == (share < 0.03)
    for note in notes:
        assert note.startswith("warning: objective.whole_word hides words whole, and 2.0 % of the tokenizer's pieces")
