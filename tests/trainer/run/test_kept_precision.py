"""A run that leaves its precision to the device keeps the one that it began with."""

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.trainer.commands import check
from longmix.trainer.commands.proposal import Command
from longmix.trainer.run import precision
from longmix.trainer.settings import reading

BF16, FP32 = ("bf16", "this processor has AVX512-BF16"), ("fp32", "this processor has no bf16 arithmetic")


@pytest.fixture
def on(monkeypatch):
    """on(choice): from here on, on a machine where `auto` takes that."""
    return lambda choice: monkeypatch.setattr(precision, "choose_precision", lambda device: choice)


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
