"""Sizes near 2^31 in run files, manifests and model folders: one line before anything is made with them."""

import dataclasses
import json

import pytest
import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest_fields import first_mistake
from longmix.trainer.cli import main
from longmix.trainer.models import sizes
from longmix.trainer.models.loading import load_config, load_model
from longmix.trainer.run import memory
from longmix.trainer.run.setup import prepare
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings import reading

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 2**31 - 1),
        ("vocab_size", 2**31 - 1),
        ("hidden_size", 2**62),
        ("num_attention_heads", 2**40),
    ],
)
@pytest.mark.parametrize("model_type", ["flt", "bert"])
def test_a_run_file_of_impossible_sizes(run_values, write_run_file, tmp_path, capsys, model_type, field, value):
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", model_type, **{f"model.{field}": value}))
    assert main(["train", path]) == 2
    error = capsys.readouterr().err
    assert f"model.{field} is {value}, but no model that can be built has more than" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.hidden_size": 2**20, "model.intermediate_size": 2**20}, "the largest is encoder."),
        ({"model.num_hidden_layers": 2**20, "model.hidden_size": 256}, "most of them in 1,048,576 layers of "),
        (
            {"model.vocab_size": 2**27, "model.hidden_size": 4096},
            "embeddings.weight (134217728, 4096): lower the field",
        ),
    ],
)
def test_a_run_beyond_all_memory_is_refused_before_it_is_built(
    run_values, write_run_file, tmp_path, capsys, monkeypatch, changes, told
):
    monkeypatch.setattr(memory, "host_memory", lambda: 64 * 2**30)
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", "transformer", **changes))
    assert main(["train", path]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "longmix: error: the run needs at least " in error and "which has 64 GiB" in error and told in error
    assert not (tmp_path / "run").exists()


def test_a_run_is_refused_by_what_it_surely_needs(run_values, tmp_path, monkeypatch):
    values = run_values(tmp_path / "run", **{"model.position_embedding_type": "learned"})
    prepared = prepare(reading.from_dict(values, "test"), 1, CPU)
    needed = 16 * prepared.size.parameters
    monkeypatch.setattr(memory, "host_memory", lambda: needed)  # a micro-batch, too, lies within the margin
    memory.refuse_beyond_memory(prepared, 1, CPU)
    monkeypatch.setattr(memory, "host_memory", lambda: needed // 2)
    with pytest.raises(UserError, match="the run needs at least"):
        memory.refuse_beyond_memory(prepared, 1, CPU)
    monkeypatch.setattr(memory, "host_memory", lambda: 3 * needed)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UserError, match="of this machine's memory"):
        memory.refuse_beyond_memory(prepared, 4, CPU)


def test_a_model_that_is_built_in_shares_needs_those_alone(run_values, tmp_path, monkeypatch):
    changes = {"deepspeed": "zero3", "batch.micro_batch": 1, "model.num_hidden_layers": 4}
    prepared = prepare(reading.from_dict(run_values(tmp_path / "run", "transformer", **changes), "test"), 8, CPU)
    monkeypatch.setattr(memory, "_micro_batch_bytes", lambda prepared: 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    # An eighth of parameters, gradients and moments in each of 8 ranks; 8 whole models would be twice as much.
    monkeypatch.setattr(memory, "host_memory", lambda: 17 * prepared.size.parameters)
    memory.refuse_beyond_memory(prepared, 8, CPU)
    changes["optim.name"] = "muon"  # built whole
    prepared = prepare(reading.from_dict(run_values(tmp_path / "run", "transformer", **changes), "test"), 8, CPU)
    with pytest.raises(UserError, match="the run needs at least"):
        memory.refuse_beyond_memory(prepared, 8, CPU)


@pytest.mark.parametrize(
    "model_type", ["converter", "flt", "paramixer", "s3attention", "transformer", "wavspa", "bert"]
)
def test_many_layers_are_counted_without_building_them(run_values, tmp_path, model_type):
    values = run_values(tmp_path / "run", model_type, **{"model.num_hidden_layers": 5})
    config = prepare(reading.from_dict(values, "test"), 1, CPU).model_configuration
    whole = sizes.measure(config, transformers.AutoModelForMaskedLM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "_FEW_LAYERS", 4)
        few = sizes.measure(config, transformers.AutoModelForMaskedLM)
    assert (few.parameters, few.embeddings) == (whole.parameters, whole.embeddings)
    assert (few.layers, whole.layers) == (5, 0)


def test_a_manifest_with_samples_or_positions_beyond_memory(run_values, write_data, tmp_path, monkeypatch):
    write_data(tmp_path / "data", 20, 1, sequence_length=2**31 - 1)
    changes = {"data.train": str(tmp_path / "data"), "data.eval": None, "model.position_embedding_type": "learned"}
    values = run_values(tmp_path / "run", **changes)
    prepared = prepare(reading.from_dict(values, "test"), 1, CPU)
    monkeypatch.setattr(memory, "host_memory", lambda: 64 * 2**30)
    with pytest.raises(
        UserError, match=r"position_embeddings.weight \(2147483647, 16\): lower the field of model, or of"
    ):
        memory.refuse_beyond_memory(prepared, 1, CPU)


def test_a_manifest_of_more_than_its_files_hold(write_data, tmp_path):
    manifest = dataclasses.asdict(write_data(tmp_path / "data", 20, 1))
    assert first_mistake(manifest) is None
    size = manifest["shards"][0]["bytes"]
    manifest["shards"][0]["samples"] = manifest["samples"] = 2**31
    assert f"shards[0].samples is 2147483648, but a file of {size} bytes has at most" in first_mistake(manifest)
    manifest = {**dataclasses.asdict(write_data(tmp_path / "other", 20, 1)), "num_labels": 2**31 - 1}
    assert "num_labels is 2147483647, but there are no label_names" in first_mistake(manifest)


def test_vectors_wider_than_their_file(tmp_path):
    import numpy as np

    from longmix.data_prep.shards import write_dataset

    columns = {"values": {"dtype": "float32", "shape": [None, 3]}}
    samples = ({"values": np.ones((2, 3), np.float32)} for _ in range(4))
    write_dataset(tmp_path / "data", samples, columns, split="train", split_rule="none", sequence_length=2)
    ShardedDataset(str(tmp_path / "data")).read(np.arange(2))
    path = tmp_path / "data" / "manifest.json"
    path.write_text(path.read_text().replace("3\n", f"{2**31 - 1}\n", 1))
    with pytest.raises(UserError, match="numbers in a row group, and the manifest says vectors of 2147483647"):
        ShardedDataset(str(tmp_path / "data")).read(np.arange(2))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("num_hidden_layers", 2**31 - 1, "no model that can be built has more than 1000; its weights are"),
        ("num_labels", 2**27, "num_labels is 134217728; its weights are"),
        ("hidden_size", 2**31, "no model that can be built has more than 268435456; its weights are"),
        ("text_config", {"num_hidden_layers": 2**31}, "text_config.num_hidden_layers is 2147483648"),
    ],
)
def test_a_configuration_beyond_its_weights(model, field, value, told):
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, field: value}))
    with pytest.raises(UserError) as caught:
        load_config(str(model))
    assert str(model / "config.json") in str(caught.value) and told in str(caught.value)


def test_a_model_of_which_the_weights_are_not_half_is_refused_before_it_is_built(model, monkeypatch):
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, "vocab_size": 2**24}))
    monkeypatch.setattr(transformers.AutoModelForMaskedLM, "from_pretrained", None)
    with pytest.raises(UserError, match=r"lacks most of the weights .* \(16777216, 8\)"):
        load_model(str(model), transformers.AutoModelForMaskedLM)
