"""Model and tokenizer folders made to mislead, or to run something: one clear line each, and nothing is executed."""

import json
import os
import re
import shutil
import socket
import stat
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, modeling_utils
from transformers.integrations import hub_kernels

from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import load_tokenizer
from longmix.modeling.transformer import TransformerConfig
from longmix.trainer.cli import main
from longmix.trainer.commands import checkpoint_figures
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.models.folder import check_model_folder
from longmix.trainer.models.loading import load_checkpoint_tokenizer, load_config, load_model

SAFE = "model.safetensors"


class Bomb:
    """Unpickled, it makes the file `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


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
    progress, error = capsys.readouterr().err.splitlines()
    assert "building bert" in progress and "pytorch_model.bin is a pickle, which could run anything" in error
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
        ({"transformers_weights": "adapter_model.bin"}, "in its config.json transformers_weights is not followed"),
    ],
)
def test_configurations_that_mislead_and_code_beside_them(model, tmp_path, fields, message, monkeypatch):
    (model / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    change_configuration(model, **fields)
    monkeypatch.setattr("builtins.input", lambda *arguments: "y")
    assert message in mistake_of(load_config, str(model))
    assert not (tmp_path / "executed").exists()


ORDERS = {
    "attn_implementation": {"attn_implementation": "org/repo"},
    "with a function": {"_attn_implementation": "kernels-community/flash-attn3:flash_attention"},
    "with a version": {"attn_implementation": "org/repo@main"},
    "paged": {"attn_implementation": "paged|org/repo"},
    "what falls back to the hub": {"attn_implementation": "flash_attention_2"},
    "a map": {"attn_implementation": {"": "eager", "text_config": "org/repo"}},
    "a list": {"attn_implementation": ["org/repo"]},
    "no name": {"attn_implementation": 3},
    "nested": {"text_config": {"model_type": "bert", "attn_implementation": "org/repo"}},
    "nested in a list": {"parts": [{"_attn_implementation": "org/repo"}]},
    "of layers": {"per_layer_config": {"0": {"attn_implementation": "org/repo"}}},
    "experts": {"experts_implementation": "sonicmoe"},
    "quantization": {"quantization_config": {"quant_method": "mxfp4"}},
}


@pytest.fixture
def nothing_is_fetched(monkeypatch):
    """Names of kernels that were asked for, and addresses that were looked up."""
    asked = []

    def refuse(*arguments, **options):
        asked.append(arguments)
        raise OSError("not here")

    monkeypatch.setattr(hub_kernels, "get_kernel", refuse)
    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", refuse)
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert asked == []


@pytest.mark.parametrize("order", ORDERS)
def test_configurations_that_order_code_are_refused_before_transformers_reads_them(model, order, nothing_is_fetched):
    change_configuration(model, **ORDERS[order])
    for work in (load_config, load, lambda folder: check_model_folder(Path(folder))):
        argument = str(model) if work is load_config else model
        text = mistake_of(work, argument)
        key = (
            "quantization_config is not followed"
            if order == "quantization"
            else r"_implementation is .*; allowed: eager, "
        )
        assert re.search(key, text), text


def test_run_files_and_commands_order_no_code(model, nothing_is_fetched, tmp_path, run_values, write_run_file, capsys):
    change_configuration(model, attn_implementation="org/repo")
    told = "attn_implementation is 'org/repo'; allowed: eager, sdpa, flex_attention"
    changes = {"model": {"from": str(model)}, "run.dir": str(tmp_path / "run")}
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", "bert", **changes))
    export = str(tmp_path / "exported")
    for command in (
        ["train", path],
        ["evaluate", str(model), "--fill", "a"],
        ["export", str(model), "--output", export],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1, command
    nested = {"model_type": "clip", "text_config": {"attn_implementation": "org/repo"}}
    assert field_mistakes(nested) == [
        ("model.text_config.attn_implementation", told.removeprefix("attn_implementation "))
    ]
    assert [key for key, _ in field_mistakes({"model_type": "bert", "attn_implementation": "org/repo"})] == [
        "model.attn_implementation"
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_map": {"AutoConfig": "org/repo--evil.Evil", "AutoModelForMaskedLM": "evil.Evil"}},
        {"use_kernels": True, "kernel_config": {"kernel_mapping": {"RMSNorm": "org/repo:layer"}}},
        {"_commit_hash": "0" * 40, "_name_or_path": "org/repo", "base_model_name_or_path": "org/repo"},
        {"custom_generate": "org/repo", "trust_remote_code": True},
        {"_attn_implementation_autoset": True, "attn_implementation": "eager", "quantization_config": None},
    ],
)
def test_fields_that_order_nothing(model, tmp_path, fields, nothing_is_fetched):
    """They are common in configurations, and are only carried along."""
    for name in ("evil.py", "custom_generate/generate.py"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    change_configuration(model, **fields)
    (model / "generation_config.json").write_text('{"custom_generate": "org/repo", "trust_remote_code": true}')
    assert type(load(model)) is BertForMaskedLM
    assert not (tmp_path / "executed").exists()


def test_an_adapter_is_no_model(model, nothing_is_fetched):
    (model / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/repo"}')
    assert "adapter_config.json, which is not followed: merge the adapter into its model" in mistake_of(load, model)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_our_own_types_order_no_code(name):
    """Without the trainer, too: load_pretrained, and whoever calls from_pretrained."""
    with pytest.raises(ValueError, match=rf"^{name} is 'org/repo'; allowed: null, eager, sdpa$"):
        TransformerConfig(**{name: "org/repo"})
    assert TransformerConfig(**{name: "sdpa"})


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


class OtherTokenizer:
    """One that does not fit the model of 96 ids: it has an id beyond them, and no piece for most."""

    mask_token_id, mask_token, all_special_ids, unk_token_id, name_or_path = 4, "[MASK]", [4], None, "other"

    def __init__(self, ids):
        self._ids = ids

    def __call__(self, *texts, **options):
        return {"input_ids": self._ids}

    def convert_ids_to_tokens(self, token):
        return None

    def decode(self, ids):
        return ""


def test_a_tokenizer_that_does_not_fit_its_model_fills_nothing_in(model, monkeypatch):
    monkeypatch.setattr(checkpoint_figures, "load_checkpoint_tokenizer", lambda source: OtherTokenizer([4, 96]))
    assert "id 96 for None, but the model's vocabulary ends at 95" in mistake_of(
        checkpoint_figures.fill, str(model), "x", 2
    )
    monkeypatch.setattr(checkpoint_figures, "load_checkpoint_tokenizer", lambda source: OtherTokenizer([4, 95]))
    assert checkpoint_figures.fill(str(model), "x", 2).count("(id ") == 2


def test_model_files_that_are_none_are_not_waited_for(model):
    for name in ("config.json", SAFE):
        (model / name).rename(model / "kept")
        os.mknod(model / name, stat.S_IFSOCK | 0o600)
        assert name in mistake_of(check_model_folder, model)
        (model / name).unlink()
        (model / "kept").rename(model / name)
    (model / SAFE).rename(model / "part.safetensors")
    (model / f"{SAFE}.index.json").write_text('{"weight_map": {"x": "socket.safetensors"}}')
    os.mknod(model / "socket.safetensors", stat.S_IFSOCK | 0o600)
    assert "socket.safetensors cannot be read: it is a socket" in mistake_of(load_config, str(model))
