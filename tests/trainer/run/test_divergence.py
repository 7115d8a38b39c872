"""A loss that diverges is the machine's fault, or its user's luck: one line, 1, and no traceback, whoever trains."""

import json

import pytest

from longmix.trainer.cli import main

# With this learning rate the second step has no finite loss any more.
ALONE = {"optim.warmup_steps": 0, "data.eval": None, "log.tensorboard": False}
DIVERGES = {"optim.lr": 1e30, "optim.max_steps": 30, **ALONE}


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith("longmix: error: ")]


@pytest.mark.full
def test_a_run_that_diverges_ends_with_one_line(tmp_path, run_values, write_run_file, capfd):
    file = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **DIVERGES))
    assert main(["train", file]) == 1
    error = capfd.readouterr().err
    assert len(lines_of(error)) == 1 and "10 steps in a row" in lines_of(error)[0]
    assert "Traceback" not in error


@pytest.mark.full
def test_a_run_that_ends_before_it_is_known_to_diverge_leaves_no_model(tmp_path, run_values, write_run_file, capfd):
    values = run_values(tmp_path / "run", **{"optim.weight_decay": 1e308, "optim.max_steps": 2, **ALONE})
    assert main(["train", write_run_file(tmp_path / "run.yaml", values)]) == 1
    error = capfd.readouterr().err
    assert len(lines_of(error)) == 1 and "training diverged" in lines_of(error)[0] and "Traceback" not in error
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.full
def test_a_sweep_of_runs_that_diverge_tells_each_in_one_line(tmp_path, run_values, write_run_file, capfd):
    file = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "sweep", **DIVERGES))
    assert main(["sweep", file, "--seeds", "1"]) == 1
    error = capfd.readouterr().err
    assert "seed-0 has failed: " in error and "10 steps in a row" in error and "Traceback" not in error
    failure = json.loads((tmp_path / "sweep" / "seed-0" / "failure.json").read_text())
    assert failure["exit_code"] == 1 and "10 steps in a row" in failure["reason"]
