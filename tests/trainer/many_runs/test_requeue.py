"""Which ended jobs are worth starting again: those that get further."""

import json

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints.folders import path_of
from longmix.trainer.cli import main
from longmix.trainer.many_runs import requeue
from longmix.trainer.many_runs.requeue import RECORD, reason_against

FAILED, INTERRUPTED = 1, 75


@pytest.fixture
def stand(tmp_path):
    """stand(step, saved=0) -> run folder with records up to `step`, one cut short, and a checkpoint of step `saved`."""
    run = tmp_path / "run"

    def stand(step, saved=0):
        run.mkdir(exist_ok=True)
        lines = [json.dumps({"kind": "train", "step": done, "loss": 1.0}) for done in range(1, step + 1)]
        (run / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "train", "st']))
        if saved:
            path_of(run, saved).mkdir(parents=True, exist_ok=True)
        return run

    return stand


def test_a_second_failure_at_the_same_step_is_one_too_many(stand):
    run = stand(30, saved=20)
    assert reason_against([run], "7", FAILED) is None
    assert "failed 2 times at step 30" in reason_against([run], "7", FAILED)


def test_failing_elsewhere_between_them_makes_no_difference(stand):
    assert reason_against([stand(30, saved=20)], "7", FAILED) is None
    assert reason_against([stand(20, saved=20)], "7", FAILED) is None
    assert "failed 2 times at step 30" in reason_against([stand(30, saved=20)], "7", FAILED)


def test_progress_counts_anew(stand):
    for step in (30, 40, 50, 60):
        assert reason_against([stand(step, saved=20)], "7", FAILED) is None
    assert "5 times without a checkpoint after step 20" in reason_against([stand(70, saved=20)], "7", FAILED)
    # A checkpoint forgets all of it, and so does another job.
    assert reason_against([stand(70, saved=70)], "7", FAILED) is None
    assert reason_against([stand(70, saved=70)], "8", FAILED) is None
    assert reason_against([stand(70, saved=70)], "8", FAILED) is not None


def test_interruptions_before_the_first_step_end_at_some_time(stand, tmp_path):
    """A time limit that is too short for the start; the first of them came before there was a run folder."""
    run = tmp_path / "run"
    assert [reason_against([run], "7", INTERRUPTED) for _ in range(4)] == [None] * 4
    assert "5 times without a checkpoint after step 0" in reason_against([run], "7", INTERRUPTED)


def test_an_interruption_is_no_failure(stand):
    for code in (FAILED, INTERRUPTED, INTERRUPTED):
        assert reason_against([stand(30)], "7", code) is None
    assert reason_against([stand(30)], "7", FAILED) is not None


@pytest.mark.parametrize("damage", ["", "[]", '{"job": "7"}', '{"job": "7", "checkpoint": 0, "endings": 1}'])
def test_a_damaged_record_counts_for_nothing(stand, damage):
    run = stand(0)
    (run / RECORD).write_text(damage)
    assert reason_against([run], "7", FAILED) is None
    assert reason_against([run], "7", FAILED) is not None


def test_a_run_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        reason_against([tmp_path / "run"], "7", FAILED)


def test_the_command_finds_the_run_folder(run_values, write_run_file, tmp_path, capsys):
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "elsewhere"))
    command = ["requeue", "--job", "7", "--code", "1", str(path), f"run.dir={tmp_path / 'run'}"]
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert main(command) == 1
    assert capsys.readouterr().out == "longmix: not started again: it failed 2 times at step 0\n"
    assert [name.name for name in (tmp_path / "run").iterdir()] == [RECORD]
    assert main([*command[:5], str(tmp_path / "nowhere.yaml")]) == 2


def test_a_job_of_a_sweep_is_measured_by_all_of_its_runs(run_values, write_run_file, tmp_path, capsys, monkeypatch):
    """Its share of two files with two seeds each: what the other jobs' runs have saved does not count."""
    monkeypatch.setattr(requeue, "MOST_ENDINGS_WITHOUT_CHECKPOINT", 2)
    runs = {(name, seed): tmp_path / name / f"seed-{seed}" for name in ("a", "b") for seed in (0, 1)}
    for name in ("a", "b"):
        write_run_file(tmp_path / f"{name}.yaml", run_values(tmp_path / name))
    command = ["requeue", "--job", "7_1", "--code", "75", "--sweep", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    command += ["--seeds", "2", "optim.max_steps=6", "--share", "1/2"]

    def codes(name, seed):
        """Of two endings after a run has saved its step 6."""
        path_of(runs[name, seed], 6).mkdir(parents=True)
        values = run_values(runs[name, seed], **{"run.seed": seed})
        write_run_file(runs[name, seed] / "config.yaml", values)
        return [main(command) for _ in range(2)]

    assert codes("b", 0) == [0, 1]
    told = "longmix: not started again: it ended 2 times without a checkpoint after step 6 of its 2 runs together\n"
    assert capsys.readouterr().out == told
    assert codes("a", 0) == [1, 1]
    assert codes("b", 1) == [0, 1]
    assert main([*command[:-1], "9/10"]) == 0
    assert [path.parent for path in tmp_path.rglob(RECORD)] == [runs["b", 0]]
