"""A finished run that is begun again says so at once; whatever is left to do, or to tell, is left to a run."""

import json

import pytest

from longmix.trainer.many_runs.ended import ending
from longmix.trainer.settings import reading


@pytest.fixture
def changes(write_data, tmp_path):
    """Of the run file: a best checkpoint, and a test set."""
    write_data(tmp_path / "test", 20, 9)
    return {"data.test": str(tmp_path / "test"), "checkpoint.best": {"metric": "loss", "mode": "min"}}


def test_only_a_run_with_nothing_left_to_do_has_ended(tmp_path, train, run_values, data, changes):
    run = tmp_path / "run"

    def end(**more):
        return ending(reading.from_dict(run_values(run, **{**changes, **more}), "test"))

    assert end() is None
    train(run, **changes, **{"run.stop_at_step": 4})
    assert end() is None
    best = train(run, **changes).state.best_step
    told = f"finished: {run / 'model'} holds the model of step {best}"
    assert end() == told and end(**{"run.max_hours": 1, "run.stop_at_step": 6, "log.every_steps": 3}) == told
    for key, value in {
        "optim.lr": 1e-3,
        "optim.max_steps": 8,
        "eval.samples": 5,
        "checkpoint.keep": 9,
        "data.train": str(data / "validation"),
        "data.eval": str(data / "nowhere"),
    }.items():
        assert end(**{key: value, "run.allow_changes": [key]}) is None, key
    (run / "STOP").touch()
    assert end() is None
    (run / "STOP").unlink()
    weights = run / "model" / "model.safetensors"
    untested = [line for line in (run / "metrics.jsonl").open() if json.loads(line)["kind"] != "test"]
    for path, content in (
        (weights, weights.read_bytes()[:-1] + b"\0"),
        (weights, None),
        (run / "model" / "config.json", None),
        (run / "model" / "README.md", None),
        (run / "model" / "README.md", b""),
        (run / "model" / ".longmix.json", b"{}"),
        (run / "checkpoints" / f"step-{best:08d}" / "model" / "model.safetensors", b""),
        (run / "checkpoints" / "step-00000006" / "state.json", None),
        (run / "metrics.jsonl", "".join(untested).encode()),
    ):
        before = path.read_bytes()
        path.write_bytes(content) if content is not None else path.unlink()
        assert end() is None, path
        path.write_bytes(before)
    (run / "model" / "pytorch_model.bin").touch()
    assert end() is None
    (run / "model" / "pytorch_model.bin").unlink()
    assert end() == told


@pytest.mark.slow
def test_all_ranks_of_a_run_that_has_ended_leave_before_a_model_is_built(
    tmp_path, train, run_values, write_run_file, start, changes
):
    train(tmp_path / "run", **changes)
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **changes))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    code, output = start("-m", "longmix.trainer", "train", path, "--processes", 2).wait()
    assert code == 0 and output.count(f"finished: {tmp_path / 'run' / 'model'} holds the model of step ") == 1
    assert "building" not in output and before == (tmp_path / "run" / "metrics.jsonl").read_bytes()
