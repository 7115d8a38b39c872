"""`longmix export --self-contained`: model folders that transformers loads without longmix, offline."""

import ast
import importlib.metadata
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, BertForMaskedLM
from transformers.dynamic_module_utils import get_imports

import longmix.modeling
from longmix.data_prep.files import MARKER
from longmix.data_prep.tokenizer import save_tokenizer, train_tokenizer
from longmix.trainer.cli import main
from longmix.trainer.export import card as cards
from longmix.trainer.export import flat_code, publish
from longmix.trainer.export.flat_code import FlatCode, flat_name

SCRIPT = Path(__file__).with_name("standing_alone.py")
VOCABULARY = 30
PAIR = "pair"  # a head without an Auto class, of one type


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    text = "the river runs down to the sea and the boats on it carry stones and wood to the old town"
    return train_tokenizer([text] * 3, tmp_path_factory.mktemp("tokenizer"), vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def exported(run_values, tokenizer, tmp_path_factory):
    """A folder with a self-contained one for each type, its masked language model, and one for the pair head."""
    folder = tmp_path_factory.mktemp("exported")
    heads = {model_type: (model_type, "ForMaskedLM") for model_type in longmix.modeling.MODEL_TYPES}
    heads[PAIR] = (longmix.modeling.MODEL_TYPES[0], "ForSequencePairClassification")
    for name, (model_type, head) in heads.items():
        fields = {**run_values(folder, model_type)["model"], "max_position_embeddings": 24, "vocab_size": VOCABULARY}
        torch.manual_seed(1)
        model = longmix.modeling.model_class(model_type, head)(AutoConfig.for_model(**fields))
        with torch.no_grad():
            for parameter in model.parameters():
                # What is zero or one at first shows, too.
                parameter.add_(0.1 * torch.randn_like(parameter))
        source = tmp_path_factory.mktemp("plain")
        publish.save_model(model, model.state_dict(), source, None)
        save_tokenizer(tokenizer, source)
        assert main(["export", str(source), "--self-contained", "--output", str(folder / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def alone(exported, tmp_path_factory):
    """(what the models give, what else was found) in a process without longmix."""
    scratch = tmp_path_factory.mktemp("alone")
    # LONGMIX_KERNELS, too: what stands alone is plain PyTorch without it.
    others = ("PYTHONPATH", "HF_HUB_CACHE", "LONGMIX_KERNELS")
    kept = {name: value for name, value in os.environ.items() if name not in others}
    cache = {"HF_HOME": str(scratch / "hub"), "HF_MODULES_CACHE": str(scratch / "modules"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, SCRIPT, scratch / "results"],
        cwd=exported,
        env={**kept, **cache},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return load_file(scratch / "results.safetensors"), json.loads((scratch / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*longmix.modeling.MODEL_TYPES, PAIR])
def test_without_longmix_a_model_gives_the_same_bits(exported, alone, tokenizer, name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    tools = runpy.run_path(str(SCRIPT))
    given, found = alone
    expected = tools["by_every_auto_class"](exported / name)
    with_its_head = longmix.modeling.load_pretrained(str(exported / name))
    expected |= {f"{name} example {key}": value for key, value in tools["outputs"](with_its_head).items()}
    assert expected.keys() == {key for key in given if key.startswith(f"{name} ")}
    for key, value in expected.items():
        assert value.isfinite().all() and torch.equal(value, given[key]), key
    assert found[name]["ids"] == tokenizer("the river runs")["input_ids"]
    # The models are too small for it.
    assert found[name]["oneDNN multiplies"] is False
    # No file that is not used, such as another mixer's.
    assert found[name]["files"] == sorted(path.name for path in (exported / name).glob("*.py"))


@pytest.mark.slow
def test_a_model_loaded_so_can_be_saved_and_longmix_may_stand_beside(alone):
    given, found = alone
    assert torch.equal(given["again logits"], given["s3attention AutoModelForMaskedLM logits"])
    assert found["beside longmix"] == ["longmix", "longmix"]


@pytest.mark.parametrize("model_type", longmix.modeling.MODEL_TYPES)
def test_every_auto_class_of_a_type_is_named(exported, model_type):
    config = json.loads((exported / model_type / "config.json").read_text())
    heads = ["MaskedLM", "SequenceClassification", "TokenClassification"]
    if AutoConfig.for_model(model_type).not_causal_because is None:
        heads.append("CausalLM")
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", *(f"AutoModelFor{head}" for head in heads)}


@pytest.mark.parametrize("model_type", longmix.modeling.MODEL_TYPES)
def test_nothing_but_imports_changes(model_type):
    model = longmix.modeling.model_class(model_type, "Model")
    files = FlatCode([model.__module__]).files
    by_flat_name = {f"{flat_name(name)}.py": module for name, module in list(sys.modules.items()) if is_ours(name)}
    for name, text in files.items():
        if name != "kernels_ops.py":  # of a list of operations, those that are used
            source = Path(by_flat_name[name].__file__).read_text(encoding="utf-8")
            assert without_imports(text.split("\n", 2)[2]) == without_imports(source), name


@pytest.mark.parametrize("model_type", longmix.modeling.MODEL_TYPES)
def test_from_the_hub_a_model_needs_little_beside_transformers(exported, model_type):
    # transformers refuses code from there that imports, wherever in a file, what is not installed.
    needed = {name for file in (exported / model_type).glob("*.py") for name in get_imports(file)}
    wavelets = {"numpy", "pywt"} if model_type == "wavspa" else set()
    assert needed - sys.stdlib_module_names == {"torch", "transformers", *wavelets}


def is_ours(name):
    return name.startswith("longmix.")


def without_imports(text):
    """The lines that belong to no import statement."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = {line for node in imports for line in range(node.lineno, node.end_lineno + 1)}
    return [text for number, text in enumerate(text.split("\n"), 1) if number not in lines]


FORMS = {
    "first": """
import math
from torch import nn

from . import second, third as other
from .inner import (
    a,  # kept
    b as other_b,
)
from .inner import VALUE as value, a


def late():
    from longmix.forms import listed; from ..forms.inner.deep import b as c
    return listed.a, c
""",
    "second": "x = 1\n",
    "third": "from .second import x\n\ny = x\n",
    "listed": "from .inner import a\nfrom .unused import z\n",
    "unused": "z = 1\n",
    "inner/__init__": "from ..second import x\nfrom .deep import a, b\n\nVALUE = 1\n",
    "inner/deep": "import yaml\n\na = b = 1\n",
}
FLAT = {
    "forms_first.py": """
import math
from torch import nn

from .forms_second import __name__ as _  # a form that transformers follows
from . import forms_second as second
from .forms_third import __name__ as _  # a form that transformers follows
from . import forms_third as other
from .forms_inner_deep import (
    a,  # kept
    b as other_b,
)
from .forms_inner import VALUE as value
from .forms_inner_deep import a


def late():
    from .forms_listed import __name__ as _  # a form that transformers follows
    from . import forms_listed as listed; from .forms_inner_deep import b as c
    return listed.a, c
""",
    "forms_second.py": "x = 1\n",
    "forms_third.py": "from .forms_second import x\n\ny = x\n",
    "forms_listed.py": '"""What this model uses of longmix.forms.listed."""\n\nfrom .forms_inner_deep import a\n',
    "forms_inner.py": "from .forms_second import x\nfrom .forms_inner_deep import a, b\n\nVALUE = 1\n",
    "forms_inner_deep.py": "import yaml\n\na = b = 1\n",
}


@pytest.fixture
def write_package(tmp_path, monkeypatch):
    """write_package({file: text}): the package longmix.forms, for this test."""
    monkeypatch.setattr(longmix, "__path__", [*longmix.__path__, str(tmp_path)])

    def write(sources):
        for name, text in {"__init__": "", **sources}.items():
            path = tmp_path / "forms" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    for name in [name for name in sys.modules if name.startswith("longmix.forms")]:
        del sys.modules[name]
    flat_code._read.cache_clear()


def test_every_form_of_import(write_package):
    write_package(FORMS)
    code = FlatCode(["longmix.forms.first"])
    assert {name: text.split("\n", 2)[2] for name, text in code.files.items()} == FLAT
    assert code.requirements == {"torch", "yaml"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("import longmix.kernels.ops as ops\n", "write .* with from"),
        ("from longmix.kernels import ops\nf = getattr(ops, 'a' + 'b')\n", "cannot be told"),
        ("from .forms_x import a\nfrom .forms.x import b\n", "both become"),
    ],
)
def test_code_that_cannot_be_made_flat_is_refused(write_package, text, match):
    write_package({"first": text, "forms_x": "a = 1\n", "forms/x": "b = 1\n"})
    with pytest.raises(ValueError, match=match):
        FlatCode(["longmix.forms.first"])


def test_the_card_says_how_to_load_and_whose_code_it_is(exported, tmp_path):
    model = exported / "s3attention"
    text = (model / "README.md").read_text(encoding="utf-8")
    assert "transformers" in text and f"torch {importlib.metadata.version('torch')}" in text and "Apache-2.0" in text
    # Exported again, in place: one section, no file of an earlier version, the user's own words and files stay.
    again = shutil.copytree(model, tmp_path / "again")
    (again / "README.md").write_text(f"{text}\n## Ours\n\n{cards.LOAD_WITH_LONGMIX}\n")
    stale = (again / "block.py").rename(again / "older_block.py")
    (again / "mine.py").write_text("mine = True\n")
    assert main(["export", str(again), "--self-contained", "--output", str(again)]) == 0
    card = (again / "README.md").read_text(encoding="utf-8")
    assert card.count("## Loading it without longmix") == 1 and "## Ours" in card
    assert cards.LOAD_WITH_LONGMIX not in card and "trust_remote_code=True" in card
    assert not stale.exists() and (again / "mine.py").exists() and (again / "block.py").exists()


def test_a_model_that_is_saved_anew_names_no_code_that_is_not_there(exported, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(exported / "s3attention")
    publish.save_model(model, model.state_dict(), tmp_path, None)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert not list(tmp_path.glob("*.py"))


@pytest.mark.parametrize("has_card", [True, False])
def test_a_plain_export_drops_the_code(exported, tmp_path, has_card):
    model = shutil.copytree(exported / "s3attention", tmp_path / "model")
    (model / "mine.py").write_text("mine = True\n")
    if has_card:
        plain = f"# Ours\n\n{cards.LOAD_WITH_LONGMIX}\n\n## Scores\n\nGood.\n"
        (model / "README.md").write_text(plain)
        assert main(["export", str(model), "--self-contained", "--output", str(model)]) == 0
    assert main(["export", str(model), "--output", str(tmp_path / "plain")]) == 0
    assert [path.name for path in (tmp_path / "plain").glob("*.py")] == ["mine.py"]
    assert "auto_map" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    card = (tmp_path / "plain" / "README.md").read_text()
    assert card == plain if has_card else card.endswith(f"# plain\n\n{cards.LOAD_WITH_LONGMIX}\n")
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "plain")).__name__ == "S3AttentionForMaskedLM"


def test_a_plain_export_keeps_the_code_of_others(exported, tmp_path):
    model = shutil.copytree(exported / "s3attention", tmp_path / "model", ignore=shutil.ignore_patterns("*.py"))
    (model / "modeling_theirs.py").write_text("theirs = True\n")
    assert main(["export", str(model), "--output", str(tmp_path / "plain")]) == 0
    assert {path.name for path in (tmp_path / "plain").iterdir()} == {path.name for path in model.iterdir()}
    assert (tmp_path / "plain" / "config.json").read_text() == (model / "config.json").read_text()


def test_mistakes_are_one_line(exported, tmp_path, capsys):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    capsys.readouterr()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    for arguments, part in [
        (["bert", "--self-contained"], "a bert, whose code transformers has: leave it out"),
        (["broken", "--self-contained"], "config.json is damaged"),
        (["bert", "--step", "4"], "--step is 4, but"),
        (["nowhere", "--self-contained"], "is no model folder"),
    ]:
        source, *options = arguments
        assert main(["export", str(tmp_path / source), *options, "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert part in error and error.count("\n") == 1, error
    assert not (tmp_path / "out").exists()
    assert main(["export", str(tmp_path / "bert"), "--output", str(tmp_path / "out")]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()} - {MARKER}
    assert written == {path.name for path in (tmp_path / "bert").iterdir()}
