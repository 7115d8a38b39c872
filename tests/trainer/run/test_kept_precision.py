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


@pytest.fixture
def gains(monkeypatch):
    """gains(whether oneDNN gains on this processor from now on)."""
    if not products.is_there():
        pytest.skip("this build of torch has no oneDNN")
    return lambda does: monkeypatch.setattr(products, "gains", lambda: does)


@pytest.fixture
def made(gains, monkeypatch):
    """A list that grows with each product that oneDNN makes, where it does of any size."""
    for name in ("LEAST_WORK", "FEWEST_ROWS", "FEWEST_CHANNELS"):
        monkeypatch.setattr(products, name, 1)
    monkeypatch.setattr(products, "DIGITS", 30)
    found, product = [], products.product
    monkeypatch.setattr(products, "product", lambda *tensors: found.append(1) or product(*tensors))
    return found


@pytest.fixture
def forget_products(rewrite_manifest):
    """forget_products(checkpoint): as an earlier version would have written it."""

    def forget(checkpoint):
        state = json.loads((checkpoint / "state.json").read_text())
        del state["products"]
        (checkpoint / "state.json").write_text(json.dumps(state))
        rewrite_manifest(checkpoint)

    return forget


@pytest.mark.parametrize("begins_with_ours", [False, True])
def test_its_products_are_made_as_it_began(train, gains, made, forget_products, tmp_path, capsys, begins_with_ours):
    whole, run = tmp_path / "whole", tmp_path / "run"
    gains(begins_with_ours)
    train(whole, precision="fp32")
    assert train(run, precision="fp32", **{"run.stop_at_step": 3}).code == 75
    assert bool(made) is begins_with_ours
    made.clear()
    gains(True)
    values = noted(run)
    if not begins_with_ours:  # earlier versions noted nothing
        del values["provenance"]["products"]
        forget_products(run / "checkpoints" / "step-00000003")
    else:  # a copy of its run file may stand in for what is lost
        del values["provenance"]
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert train(run, precision="fp32").code == 0
    assert bool(made) is begins_with_ours and "until here this run computed" not in capsys.readouterr().err
    assert noted_facts(run)["products"] == ("oneDNN" if begins_with_ours else "torch")
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, run)]
    assert weights[0] == weights[1]


def test_each_start_with_other_products_says_so_and_the_next_one_goes_on_as_the_run_began(
    train, gains, tmp_path, capsys
):
    run = tmp_path / "run"
    gains(True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    gains(False)
    assert train(run, precision="fp32", **{"run.stop_at_step": 4}).code == 75
    assert "until here this run computed with fp32 products by oneDNN, and now with torch: " in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot go on to the same bits: products was oneDNN and is now torch"):
        changed_circumstances(RunSection("run", deterministic=True), {"products": "oneDNN"}, {"products": "torch"})
    assert noted_facts(run)["products"] == "torch"
    gains(True)
    assert train(run, precision="fp32").code == 0
    assert "until here this run computed with fp32 products by torch, and now with oneDNN: " in capsys.readouterr().err
    assert noted_facts(run)["products"] == "oneDNN"


def test_its_checkpoint_says_who_multiplied_where_config_yaml_does_not(train, gains, tmp_path, capsys):
    """As where a copy of the run file stands in for one that was lost."""
    run = tmp_path / "run"
    gains(True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    values = noted(run)
    del values["provenance"]
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    gains(False)
    assert train(run, precision="fp32").code == 0
    assert "until here this run computed with fp32 products by oneDNN, and now with torch: " in capsys.readouterr().err


def test_a_run_of_the_version_that_noted_products_among_the_kernels(train, gains, forget_products, tmp_path):
    run = tmp_path / "run"
    gains(True)
    assert train(run, precision="fp32", **{"run.stop_at_step": 2}).code == 75
    values = noted(run)
    del values["provenance"]["products"]
    values["provenance"]["kernels"] = "linear onednn, linear_cross_entropy cpu"
    (run / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    forget_products(run / "checkpoints" / "step-00000002")

    def ended(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):  # as if killed before its first step
        patch.setattr(loop._Run, "train", ended)
        train(run, precision="fp32")
    assert "linear onednn" not in noted_facts(run)["kernels"]
    assert train(run, precision="fp32").code == 0
    assert noted_facts(run)["products"] == "oneDNN"


def test_a_run_in_half_precision_reads_its_test_split_as_it_began(
    train, gains, made, read_metrics, write_data, tmp_path
):
    """Its model is read in fp32 at the end, whatever it trained in."""
    gains(True)
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
