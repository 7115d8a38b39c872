"""The benchmark of the CPU time of steps: its runs fit every model, and its figures mean what the table says."""

import sys

import pytest
import torch

from longmix.modeling import MODEL_TYPES
from longmix.trainer.run import setup
from longmix.trainer.settings import reading


@pytest.fixture
def step_cost(script):
    return script("learned.step_cost")


@pytest.mark.parametrize("name", [*MODEL_TYPES, "bert"])
def test_every_run_is_one_that_its_model_takes(script, step_cost, tmp_path, name):
    script("samples.random_tokens").write_samples(
        tmp_path / "data", step_cost.TEXT_LENGTH, 8, step_cost.TEXT_VOCABULARY
    )
    (contestant,) = (one for one in step_cost.contestants([name], None)[:2] if one.precision == "bf16")
    words = step_cost._words(contestant, 8, 5, tmp_path / "data", tmp_path / "run")
    paths = [text for text in words if "=" not in text]
    prepared = setup.prepare(reading.load(paths, [text for text in words if "=" in text]), 1, torch.device("cpu"))
    config = prepared.model_configuration
    assert prepared.precision == "bf16" and config.model_type == name
    assert config.hidden_size == 128 and (name != "bert" or config.intermediate_size == 512)


def test_the_median_step_behind_the_first_ones_counts(step_cost, monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import sys\nfor line in sys.stdin:\n    print([9] * 5 + [1, 3, 2], flush=True)\n")
    monkeypatch.setattr(step_cost, "_WORKER", worker)
    with step_cost.Workers(tmp_path / "log") as workers:
        assert [workers.seconds(sys.executable, ["run"]) for _ in range(2)] == [2, 2]
    worker.write_text("import sys\nsys.exit('longmix: no such model')\n")
    with step_cost.Workers(tmp_path / "log") as workers, pytest.raises(SystemExit, match="no such model"):
        workers.seconds(sys.executable, ["run"])


def test_the_table_gives_ratios_to_fp32_before(step_cost):
    row = {"date": "2026-01-02", "commit": "abc", "machine": "one core", "command": "training_speed.py --before PYTHON"}
    values = {
        "transformer before, fp32": 100,
        "transformer before, bf16": 130,
        "transformer, bf16": 170,
        "bert, fp32": 50,
    }
    rows = [{"case": f"{case}, 8 rows", "value": value, **row} for case, value in values.items()]
    text = step_cost.table(rows)
    assert "| `transformer`, before | 100 (1.00x) | 130 (1.30x) |" in text
    assert "| `transformer` |  | 170 (1.70x) |" in text and "| `bert` | 50 |" in text
    # Later without the version before: on another day the machine may have been busier.
    later = {**rows[2], "value": 140, "command": "training_speed.py"}
    assert "| `transformer` |  | 140 |" in step_cost.table([*rows, later])
