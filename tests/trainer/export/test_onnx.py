"""`longmix export --onnx`: what onnxruntime makes of a model is what torch makes of it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoConfig
from transformers.utils.logging import enable_progress_bar

import longmix.modeling
from longmix.data_prep.files import MARKER
from longmix.trainer.cli import main
from longmix.trainer.export import onnx, publish

LONGEST = 40
TOLERANCE = 1e-5  # relative root mean square, fp32
# An odd number of rows, odd lengths, powers of two, one token, and as many as the model takes.
SHAPES = [(1, 1), (1, 2), (2, 7), (3, 16), (5, 33), (7, LONGEST)]


@pytest.fixture(scope="module", autouse=True)
def libraries(require_or_skip):
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        require_or_skip("onnx", "the extra longmix[onnx] is not installed")


@pytest.fixture
def save(run_values, tmp_path, capsys):
    """save(model type, head, values, **fields) -> the folder of a model whose weights are nowhere zero or one.

    values: its configuration but for `fields`; None: the smallest of its type.
    """

    def make(model_type, head="ForMaskedLM", values=None, **fields):
        values = values or run_values(tmp_path, model_type)["model"]
        values = {**values, "vocab_size": 30, "max_position_embeddings": LONGEST, **fields}
        torch.manual_seed(1)
        model = longmix.modeling.model_class(model_type, head)(AutoConfig.for_model(**values))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        publish.save_model(model, model.state_dict(), tmp_path / "model", None)
        capsys.readouterr()
        return tmp_path / "model", model.eval()

    return make


def difference(path, model, batch, length):
    """The largest relative difference over runs whose padding holds other tokens."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = onnx.example(model.config, batch, length)
    with torch.no_grad():
        expected = model(**inputs).logits
    mask, found = inputs["attention_mask"].bool(), []
    for filler in (0, 29):
        padded = {**inputs, "input_ids": inputs["input_ids"].masked_fill(~mask, filler)}
        found.append(torch.from_numpy(session.run(None, {name: value.numpy() for name, value in padded.items()})[0]))
    valid = mask if expected.dim() == 3 else slice(None)
    return max(((one - expected)[valid].norm() / expected[valid].norm()).item() for one in found)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("model_type", "head", "fields"),
    [
        ("transformer", "ForMaskedLM", {}),
        ("wavspa", "ForMaskedLM", {}),
        ("paramixer", "ForSequenceClassification", {"num_labels": 3}),
        ("flt", "ForTokenClassification", {"num_labels": 4}),
        ("transformer", "ForCausalLM", {"is_causal": True, "type_vocab_size": 0}),
        ("wavspa", "ForSequenceClassification", {"num_labels": 1, "block_style": "paper"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_onnxruntime_gives_what_torch_gives(save, tmp_path, capsys, model_type, head, fields):
    folder, model = save(model_type, head, **fields)
    out = tmp_path / "out"
    capsys.readouterr()
    enable_progress_bar()  # as in a new process, whatever other tests have left
    assert main(["export", str(folder), "--onnx", "--output", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"wrote {out}"] and "%|" not in captured.err
    worst = {shape: difference(out / "model.onnx", model, *shape) for shape in SHAPES}
    assert max(worst.values()) < TOLERANCE, worst
    assert "model.onnx" in (out / MARKER).read_text()
    data = (out / "model.onnx").read_bytes()
    for place in (Path(longmix.modeling.__file__).parents[1], Path(torch.__file__).parents[1], tmp_path):
        assert str(place).encode() not in data


def fields_of(config):
    """The fields of a file of configs/, of fewer layers."""
    path = Path(__file__).parents[3] / "configs" / config
    return {**yaml.safe_load(path.read_text())["model"], "num_hidden_layers": 2}


def whole_models():
    """Each type, as a masked and, where it can be causal and exported, a causal language model."""
    for model_type in onnx.MODEL_TYPES:
        yield model_type, "ForMaskedLM"
        if AutoConfig.for_model(model_type).not_causal_because is None and model_type != "flt":
            yield model_type, "ForCausalLM"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("model_type", "head"), list(whole_models()))
def test_the_models_of_configs_take_any_length(save, tmp_path, capsys, model_type, head):
    fields = {"max_position_embeddings": 200, "is_causal": head == "ForCausalLM"}
    if model_type == "paramixer" and fields["is_causal"]:
        fields["symmetric"] = False  # links to both sides cannot be causal
    folder, model = save(model_type, head, fields_of(f"model/{model_type}_tiny.yaml"), **fields)
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    # One block of the 32 rows of windows, several, and parts of them.
    shapes = [(1, 1), (2, 7), (3, 32), (1, 64), (2, 65), (3, 168), (5, 199), (2, 200)]
    worst = {shape: difference(tmp_path / "out" / "model.onnx", model, *shape) for shape in shapes}
    assert max(worst.values()) < TOLERANCE, worst


@pytest.mark.slow
@pytest.mark.full
def test_windows_that_are_longer_than_other_blocks_take_any_length(save, tmp_path, capsys):
    fields = {"max_position_embeddings": 600, "hidden_size": 32, "intermediate_size": 32}
    folder, model = save("wavspa", "ForMaskedLM", fields_of("mixer/windowed.yaml"), **fields)
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    # The windows reach over 256 positions: one block, two, and a part of a third.
    shapes = [(1, 1), (2, 200), (1, 300), (2, 512), (1, 600)]
    worst = {shape: difference(tmp_path / "out" / "model.onnx", model, *shape) for shape in shapes}
    assert max(worst.values()) < TOLERANCE, worst


@pytest.mark.parametrize(
    ("model_type", "head", "fields", "reason"),
    [
        ("s3attention", "ForMaskedLM", {}, "is a s3attention: its Fourier convolution"),
        ("converter", "ForMaskedLM", {}, "is a converter: torch.onnx translates no operator"),
        ("flt", "ForCausalLM", {"is_causal": True}, "--onnx exports no flt that is causal, as "),
        ("transformer", "ForSequencePairClassification", {"num_labels": 2}, "is one of pair_classification"),
        ("wavspa", "ForSequenceClassification", {"input_channels": 3}, "reads real values"),
    ],
)
def test_what_onnx_cannot_express_is_refused_in_one_line(save, tmp_path, capsys, model_type, head, fields, reason):
    folder, _ = save(model_type, head, **fields)
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and reason in said
    assert not (tmp_path / "out").exists()


def test_without_the_libraries_a_line_says_what_to_install(save, tmp_path, capsys, monkeypatch):
    folder, _ = save("transformer")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 2
    assert "--onnx needs onnxscript: pip install 'longmix[onnx]'\n" in capsys.readouterr().err


def test_what_differs_from_torch_is_not_written(save, tmp_path, capsys, monkeypatch):
    folder, _ = save("transformer")
    monkeypatch.setattr(onnx, "_difference", lambda *_: float("nan"))
    monkeypatch.setattr(onnx, "_export", lambda *_: type("Program", (), {"save": lambda self, path: path.touch()})())
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 1
    assert "differ from torch's" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_length_that_has_become_a_constant_is_refused_in_one_line(save, tmp_path, capsys, monkeypatch):
    folder, _ = save("transformer")
    inputs = [SimpleNamespace(name="input_ids", shape=("batch", 24))]
    graph = SimpleNamespace(inputs=inputs, all_nodes=list)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: SimpleNamespace(model=SimpleNamespace(graph=graph)))
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "of input_ids only the length 24" in said and not (tmp_path / "out").exists()


def test_what_onnxruntime_refuses_is_told_in_one_line(save, tmp_path, capsys, monkeypatch):
    folder, _ = save("transformer")
    program = SimpleNamespace(save=lambda path: path.write_bytes(b"no ONNX"))
    monkeypatch.setattr(onnx, "_export", lambda *_: program)
    assert main(["export", str(folder), "--onnx", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "onnxruntime refuses this model: " in said and not (tmp_path / "out").exists()


def test_an_onnx_of_the_users_is_not_written_over(save, capsys):
    folder, _ = save("transformer")
    (folder / "model.onnx").write_text("mine")
    assert main(["export", str(folder), "--onnx", "--output", str(folder)]) == 2
    assert "holds model.onnx already" in capsys.readouterr().err
    assert (folder / "model.onnx").read_text() == "mine" and json.loads((folder / "config.json").read_text())
