"""longmix export looks at a model folder before it copies it: nothing damaged takes the place of what is whole."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import MARKER
from longmix.trainer.cli import main
from longmix.trainer.models.folder import Inputs, objective_of, read_inputs

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model folder of transformers."""
    folder = tmp_path_factory.mktemp("whole")
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=8)
    BertForMaskedLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def source(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "source")


def cut(path):
    os.truncate(path, path.stat().st_size - 5)


def as_pickle(folder):
    (folder / SAFE).unlink()
    torch.save({"weight": torch.zeros(1000)}, folder / PICKLED)


def as_shards(folder):
    (folder / SAFE).unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        save_file({name[:11]: torch.zeros(4)}, folder / name)
    (folder / f"{SAFE}.index.json").write_text(json.dumps({"weight_map": {name[:11]: name for name in names}}))
    return folder / names[1]


def elsewhere(folder):
    index = as_shards(folder).parent / f"{SAFE}.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "../other/model.safetensors"}}))


DAMAGES = {
    "weights cut": (lambda folder: cut(folder / SAFE), f"{SAFE} is damaged or was cut short"),
    "weights empty": (lambda folder: (folder / SAFE).write_bytes(b""), f"{SAFE} is damaged or was cut short"),
    "weights missing": (lambda folder: (folder / SAFE).unlink(), f"holds no weights: {SAFE} is missing"),
    "weights pickled": (as_pickle, f"{PICKLED} is a pickle, which could run anything"),
    "shard missing": (lambda folder: as_shards(folder).unlink(), "model-00002-of-00002.safetensors is missing"),
    "shard cut": (lambda folder: cut(as_shards(folder)), "model-00002-of-00002.safetensors is damaged"),
    "shard elsewhere": (elsewhere, "names '../other/model.safetensors', but must name safetensors files beside it"),
    "index empty": (
        lambda folder: (as_shards(folder).parent / f"{SAFE}.index.json").write_text("{}"),
        "index.json is damaged: it names no weights",
    ),
    "configuration cut": (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged, no JSON"),
    "configuration of nothing": (lambda folder: (folder / "config.json").write_text("{}"), "model_type is missing"),
    "configuration a list": (lambda folder: (folder / "config.json").write_text("[]"), "it holds no JSON object"),
    "tokenizer cut": (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json is damaged, no JSON"),
}


@pytest.mark.parametrize("options", [[], ["--self-contained"]], ids=["plain", "self-contained"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_and_nothing_is_touched(source, whole, tmp_path, capsys, damage, options):
    spoil, message = DAMAGES[damage]
    spoil(source)
    good = shutil.copytree(whole, tmp_path / "good")
    before = {path.name: path.read_bytes() for path in good.iterdir()}
    for output in (good, tmp_path / "deep" / "new"):
        assert main(["export", str(source), *options, "--output", str(output)]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "source"]


@pytest.mark.parametrize("form", [lambda folder: None, as_shards], ids=["one file", "shards"])
def test_whole_folders_of_every_form_are_copied(source, tmp_path, form):
    form(source)
    assert main(["export", str(source), "--output", str(tmp_path / "out")]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()} - {MARKER}
    assert written == {path.name for path in source.iterdir()}


@pytest.mark.parametrize("output", ["file/below", "/proc/below"])
def test_an_output_that_cannot_be_written(source, tmp_path, capsys, output):
    (tmp_path / "file").touch()
    assert main(["export", str(source), "--output", str(tmp_path / output)]) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error and error.count("\n") == 1


def test_the_objective_of_a_folder_goes_before_that_of_its_head(tmp_path):
    config = BertConfig(architectures=["BertForSequenceClassification"])
    assert objective_of(str(tmp_path), config).name == "classification"
    (tmp_path / "objective.json").write_text('{"name": "regression"}')
    assert objective_of(str(tmp_path), config).name == "regression"


def test_damaged_inputs_are_named(tmp_path):
    assert read_inputs(str(tmp_path)) == Inputs()
    (tmp_path / "inputs.json").write_text('{"text_columns": "body"}')
    with pytest.raises(UserError, match=r"inputs\.json is damaged \(text_columns is .*copy the model folder again"):
        read_inputs(str(tmp_path))
