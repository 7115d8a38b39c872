"""Model and tokenizer folders made to mislead, or to run something: one clear line each, and nothing is executed."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import load_tokenizer
from longmix.trainer.cli import main
from longmix.trainer.models.loading import load_checkpoint_tokenizer, load_config, load_model

SAFE = "model.safetensors"


class Bomb:
    """Unpickled, it makes the file `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def model(tmp_path):
    """A small model folder of transformers."""
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=96)
    BertForMaskedLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def mistake_of(work, *arguments):
    with pytest.raises(UserError) as caught:
        work(*arguments)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 1000
    return text


def change_configuration(folder, **fields):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **fields}))


def load(folder):
    return load_model(str(folder), transformers.AutoModelForMaskedLM)


def test_a_pickle_in_the_place_of_weights_is_not_opened(model, tmp_path, run_values, write_run_file, capsys):
    weights = load_file(model / SAFE)
    (model / SAFE).unlink()
    torch.save({**weights, "bomb": Bomb(tmp_path / "executed")}, model / "pytorch_model.bin")
    changes = {"model": {"from": str(model)}, "run.dir": str(tmp_path / "run")}
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", "bert", **changes))
    assert main(["train", path]) == 2
    error = capsys.readouterr().err
    assert "pytorch_model.bin is a pickle, which could run anything" in error and error.count("\n") == 1
    assert not (tmp_path / "executed").exists() and not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(model, value):
    weights = load_file(model / SAFE)
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name][3, 2] = value
    save_file(weights, model / SAFE, {"format": "pt"})
    assert f"the weights hold NaN or infinity, first in {name}" in mistake_of(load, model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}, "contains custom code"),
        ({"model_type": ["bert"]}, "is no loadable checkpoint"),
        ({"hidden_size": "8"}, "is no loadable checkpoint"),
        ({"transformers_weights": "adapter_model.bin"}, "has transformers_weights, which is not followed"),
    ],
)
def test_configurations_that_mislead_and_code_beside_them(model, tmp_path, fields, message, monkeypatch):
    (model / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    change_configuration(model, **fields)
    monkeypatch.setattr("builtins.input", lambda *arguments: "y")
    assert message in mistake_of(load_config, str(model))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"model_type": "bert", "vocab_size": 1e400}'])
def test_configurations_that_are_none(model, text):
    (model / "config.json").write_text(text)
    assert str(model) in mistake_of(load, model)


FAST, SENTENCE_PIECE = '{"tokenizer_class": "PreTrainedTokenizerFast"}', '{"tokenizer_class": "SentencePieceBackend"}'
NO_TOKENIZERS = {
    "text for JSON": {"tokenizer_config.json": FAST, "tokenizer.json": "not one"},
    "other JSON": {"tokenizer_config.json": FAST, "tokenizer.json": '{"version": "1.0"}'},
    "a list": {"tokenizer_config.json": FAST, "tokenizer.json": "[]"},
    "text for a model": {"tokenizer_config.json": SENTENCE_PIECE, "tokenizer.model": "not one"},
    "an empty model": {"tokenizer_config.json": SENTENCE_PIECE, "tokenizer.model": ""},
    "no model": {"tokenizer_config.json": SENTENCE_PIECE},
    "a vocabulary of bytes": {"tokenizer_config.json": '{"tokenizer_class": "BertTokenizer"}', "vocab.txt": b"\xff\0"},
    "a class that is none": {"tokenizer_config.json": '{"tokenizer_class": ["a"]}'},
    "no UTF-8": {"tokenizer_config.json": b"\xff\xfe"},
    "too deep": {"tokenizer_config.json": "[" * 100_000},
    "a folder": {"tokenizer_config.json/file": ""},
    "code": {
        "tokenizer_config.json": '{"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", null]}}',
        "evil.py": "open('executed', 'w')\n",
    },
}


@pytest.mark.parametrize("load", [load_tokenizer, lambda folder: load_checkpoint_tokenizer(str(folder))])
@pytest.mark.parametrize("case", NO_TOKENIZERS)
def test_tokenizer_files_that_are_none(tmp_path, monkeypatch, case, load):
    for name, text in NO_TOKENIZERS[case].items():
        (tmp_path / "tokenizer" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tokenizer" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *arguments: "y")
    assert str(tmp_path / "tokenizer") in mistake_of(load, tmp_path / "tokenizer")
    assert not (tmp_path / "executed").exists()


def test_a_run_over_data_whose_tokenizer_is_none(data, tmp_path, run_values, write_run_file, capsys):
    from longmix.data_prep.files import sha256_of_folder

    folder, tokenizer = shutil.copytree(data / "train", tmp_path / "train"), tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text(SENTENCE_PIECE)
    (tokenizer / "tokenizer.model").write_bytes(bytes(range(256)))
    values = json.loads((folder / "manifest.json").read_text())
    values["tokenizer"] = {"path": "../tokenizer", "sha256": sha256_of_folder(tokenizer)}
    (folder / "manifest.json").write_text(json.dumps(values))
    changes = {"data.train": str(folder), "data.eval": None, "objective.whole_word": True}
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", objective={"name": "mlm"}, **changes))
    assert main(["train", path]) == 2
    error = capsys.readouterr().err
    assert f"the tokenizer in {folder}/../tokenizer cannot be loaded" in error and error.count("\n") == 1
