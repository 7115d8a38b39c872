"""A run that leaves its precision to the device keeps the one that it began with, and those who multiply."""

import json

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.kernels.linear import products
from longmix.trainer.commands import check
from longmix.trainer.commands.proposal import Command
from longmix.trainer.run import kept_choices, loop
from longmix.trainer.run.determinism import changed_circumstances
from longmix.trainer.run.folder import noted_facts
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import RunSection

BF16, FP32 = ("bf16", "this processor has AVX512-BF16"), ("fp32", "this processor has no bf16 arithmetic")


@pytest.fixture
def on(monkeypatch):
    """on(choice): from here on, on a machine where `auto` takes that."""
    return lambda choice: monkeypatch.setattr(kept_choices, "choose_precision", lambda device: choice)


def noted(run):
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("is_old", [False, True])
def test_it_goes_on_in_it_on_a_device_with_another(train, run_values, tmp_path, capsys, on, is_old):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(whole, precision="bf16")
    on(BF16)
    assert train(run, precision="auto", **{"run.stop_at_step": 3}).code == 75
    assert "precision: bf16 (auto: this processor has AVX512-BF16)\n" in capsys.readouterr().err
    values = noted(run)
    assert values["precision"] == "bf16"
    if is_old:  # earlier versions left it open there
        values["precision"] = "auto"
        (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    on(FP32)
    text = check.report(reading.from_dict(run_values(run, precision="auto"), "test"), 1, Command((), (), None))
    assert "Accelerate, bf16, on cpu" in text and "precision: bf16 (auto: as the run was begun)" in text
    assert train(run, precision="auto").code == 0
    assert "precision: bf16 (auto: as the run was begun)\n" in capsys.readouterr().err
    assert noted(run)["precision"] == "bf16"
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, run)]
    assert weights[0] == weights[1]


def test_naming_the_precision_that_auto_took_changes_nothing_and_another_is_refused(train, tmp_path, capsys, on):
    run = tmp_path / "run"
    on(BF16)
    assert train(run, precision="auto", **{"run.stop_at_step": 2}).code == 75
    with pytest.raises(UserError, match="precision was 'bf16' and is now 'fp32'"):
        train(run, precision="fp32")
    capsys.readouterr()
    assert train(run, precision="bf16").code == 0
    assert "auto" not in capsys.readouterr().err


def test_a_run_without_a_checkpoint_keeps_it_too(train, tmp_path, on):
    run = tmp_path / "run"
    on(BF16)
    assert train(run, precision="auto", **{"run.stop_at_step": 2}).code == 75
    for path in sorted((run / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    on(FP32)
    assert train(run, precision="auto").code == 0
    assert noted(run)["precision"] == "bf16"


@pytest.mark.parametrize("begins_with_ours", [False, True])
def test_its_products_are_made_as_it_began(train, rewrite_manifest, tmp_path, capsys, monkeypatch, begins_with_ours):
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    for name in ("LEAST_WORK", "FEWEST_ROWS", "FEWEST_CHANNELS"):
        monkeypatch.setattr(products, name, 1)
    monkeypatch.setattr(products, "DIGITS", 30)
    made = []
    product = products.product
    monkeypatch.setattr(products, "product", lambda *tensors: made.append(1) or product(*tensors))
    whole, run = tmp_path / "whole", tmp_path / "run"
    monkeypatch.setattr(products, "gains", lambda: begins_with_ours)
    train(whole, precision="fp32")
    assert train(run, precision="fp32", **{"run.stop_at_step": 3}).code == 75
    assert bool(made) is begins_with_ours
    made.clear()
    monkeypatch.setattr(products, "gains", lambda: True)
    values = noted(run)
    if not begins_with_ours:  # earlier versions noted nothing
        del values["provenance"]["products"]
        checkpoint = run / "checkpoints" / "step-00000003"
        state = json.loads((checkpoint / "state.json").read_text())
        del state["products"]
        (checkpoint / "state.json").write_text(json.dumps(state))
        rewrite_manifest(checkpoint)
    else:  # a copy of its run file may stand in for what is lost
        del values["provenance"]
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert train(run, precision="fp32").code == 0
    assert bool(made) is begins_with_ours and "until here this run computed" not in capsys.readouterr().err
    assert noted_facts(run)["products"] == ("oneDNN" if begins_with_ours else "torch")
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, run)]
    assert weights[0] == weights[1]


def test_each_start_with_other_products_says_so_and_the_next_one_goes_on_as_the_run_began(
    train, tmp_path, capsys, monkeypatch
):
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    run = tmp_path / "run"
    monkeypatch.setattr(products, "gains", lambda: True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    monkeypatch.setattr(products, "gains", lambda: False)
    assert train(run, precision="fp32", **{"run.stop_at_step": 4}).code == 75
    assert "until here this run computed with fp32 products by oneDNN, and now with torch: " in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot go on to the same bits: products was oneDNN and is now torch"):
        changed_circumstances(RunSection("run", deterministic=True), {"products": "oneDNN"}, {"products": "torch"})
    assert noted_facts(run)["products"] == "torch"
    monkeypatch.setattr(products, "gains", lambda: True)
    assert train(run, precision="fp32").code == 0
    assert "until here this run computed with fp32 products by torch, and now with oneDNN: " in capsys.readouterr().err
    assert noted_facts(run)["products"] == "oneDNN"


def test_its_checkpoint_says_who_multiplied_where_config_yaml_does_not(train, tmp_path, capsys, monkeypatch):
    """As where a copy of the run file stands in for one that was lost."""
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    run = tmp_path / "run"
    monkeypatch.setattr(products, "gains", lambda: True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    values = noted(run)
    del values["provenance"]
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.setattr(products, "gains", lambda: False)
    assert train(run, precision="fp32").code == 0
    assert "until here this run computed with fp32 products by oneDNN, and now with torch: " in capsys.readouterr().err


def test_a_run_of_the_version_that_noted_products_among_the_kernels(train, rewrite_manifest, tmp_path, monkeypatch):
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    run = tmp_path / "run"
    monkeypatch.setattr(products, "gains", lambda: True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    values = noted(run)
    del values["provenance"]["products"]
    values["provenance"]["kernels"] = "linear onednn, linear_cross_entropy cpu"
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    checkpoint = run / "checkpoints" / "step-00000002"
    state = json.loads((checkpoint / "state.json").read_text())
    del state["products"]
    (checkpoint / "state.json").write_text(json.dumps(state))
    rewrite_manifest(checkpoint)

    def ended(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):  # as if killed before its first step
        patch.setattr(loop._Run, "train", ended)
        train(run, precision="fp32")
    assert "linear onednn" not in noted_facts(run)["kernels"]
    assert train(run, precision="fp32").code == 0
    assert noted_facts(run)["products"] == "oneDNN"


def test_a_run_in_half_precision_reads_its_test_split_as_it_began(
    train, read_metrics, write_data, tmp_path, monkeypatch
):
    """Its model is read in fp32 at the end, whatever it trained in."""
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    for name in ("LEAST_WORK", "FEWEST_ROWS", "FEWEST_CHANNELS"):
        monkeypatch.setattr(products, name, 1)
    monkeypatch.setattr(products, "DIGITS", 30)
    monkeypatch.setattr(products, "gains", lambda: True)
    made = []
    product = products.product
    monkeypatch.setattr(products, "product", lambda *tensors: made.append(1) or product(*tensors))
    write_data(tmp_path / "test", 20, 3, split="test")
    best = {"metric": "loss", "mode": "min"}
    changes = {"precision": "bf16", "data.test": str(tmp_path / "test"), "checkpoint.best": best}
    train(tmp_path / "whole", **changes)
    assert made
    made.clear()
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 2}).code == 75
    assert train(tmp_path / "run", **changes).code == 0 and made
    whole, run = (read_metrics(tmp_path / name, "test") for name in ("whole", "run"))
    assert whole == run
