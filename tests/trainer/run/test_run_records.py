"""What a run notes of itself: records that were damaged, TensorBoard's charts, and odd bytes in local changes."""

import json
import math
import subprocess

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch.utils import tensorboard

from longmix.trainer.checkpoints.run_log import RunLog
from longmix.trainer.settings import provenance
from longmix.trainer.settings.run_file import parse_yaml


def test_damaged_records_are_set_aside_and_the_rest_kept(tmp_path, capsys):
    kept = b'{"kind": "train", "step": 1, "note": "\xc3\xbc"}\n'
    damaged = [
        b'{"kind": "train", "st',
        b"\xff\xfe",
        b"3",
        b"[1]",
        b'{"kind": "train", "step": "x"}',
        b"null",
        b"[" * 99_999,
    ]
    (tmp_path / "metrics.jsonl").write_bytes(kept + b"\n".join(damaged) + b'\n{"kind": "train", "step": 5}\n')
    (tmp_path / "metrics.jsonl.damaged-1").write_text("of an earlier start")
    log = RunLog(tmp_path, True, first_step=3, last_step=9, tensorboard=False)
    log.record("train", 4, {"loss": 1.0})
    log.close()
    assert (tmp_path / "metrics.jsonl.damaged-1").read_text() == "of an earlier start"
    assert (tmp_path / "metrics.jsonl.damaged-2").read_bytes() == b"".join(line + b"\n" for line in damaged)
    assert capsys.readouterr().err.startswith(
        f"warning: {tmp_path / 'metrics.jsonl'} had 7 damaged lines, now in metrics.jsonl.damaged-2: those records"
    )
    first, second = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert first == kept and json.loads(second) == {"kind": "train", "step": 4, "loss": 1.0}


def test_a_line_that_a_kill_cut_short_is_made_again(tmp_path, capsys):
    kept = '{"kind": "train", "step": 1}\n'
    (tmp_path / "metrics.jsonl").write_text(kept + '{"kind": "tra')
    RunLog(tmp_path, True, first_step=1, last_step=9, tensorboard=False).close()
    assert (tmp_path / "metrics.jsonl").read_text() == kept and len(list(tmp_path.iterdir())) == 1
    assert capsys.readouterr().err == ""


def test_records_that_have_gone_are_told(tmp_path, capsys):
    RunLog(tmp_path, True, first_step=3, last_step=9, tensorboard=False).close()
    told = capsys.readouterr().err
    assert told == (
        f"warning: {tmp_path / 'metrics.jsonl'} is missing: the records up to step 3 are lost, and the run goes on\n"
    )
    # What is there, and what has only begun, is not lost; nor do the other ranks tell it again.
    RunLog(tmp_path, True, first_step=3, last_step=9, tensorboard=False).close()
    for name, is_first, step in (("begun", True, 0), ("other", False, 3)):
        (tmp_path / name).mkdir()
        RunLog(tmp_path / name, is_first, first_step=step, last_step=9, tensorboard=False).close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_due", [False, True])
def test_an_evaluation_that_is_made_again_is_recorded_once(tmp_path, is_due):
    kinds = [("eval", 2), ("train", 4), ("eval", 4), ("train", 6)]
    lines = [json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in kinds]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    RunLog(tmp_path, True, first_step=4, last_step=9, tensorboard=False, evaluation_due=is_due).close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:2] if is_due else lines[:3])


def test_a_figure_that_is_not_finite_is_told_as_such(tmp_path, capsys):
    log = RunLog(tmp_path, True, first_step=0, last_step=9, tensorboard=False)
    log.record("test", 9, {"loss": math.inf, "accuracy": 0.5, "matthews": None})
    log.close()
    assert capsys.readouterr().err == "test 9/9  loss not finite  accuracy 50.0 %\n"
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] is None


def test_tensorboard_draws_no_count_that_never_changes(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(tensorboard.SummaryWriter, "add_scalar", lambda self, name, *_: drawn.append(name))
    log = RunLog(tmp_path, True, first_step=0, last_step=9, tensorboard=True)
    log.record("eval", 4, {"loss": 1.0, "items": 30})
    log.close()
    assert drawn == ["eval/loss"]


@pytest.mark.full
def test_tensorboard_draws_the_loss_over_the_tokens(train, read_metrics, tmp_path, monkeypatch):
    # Files of one second are read in the order of their names, in which the 10th of a process stands before the 9th.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    changes = {"log.tensorboard": True, "log.every_steps": 1, "eval.every_steps": 2, "optim.max_steps": 6}
    train(tmp_path / "run", **changes, **{"run.stop_at_step": 3})
    train(tmp_path / "run", **changes)
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "by_tokens")).Reload()
    records = read_metrics(tmp_path / "run")
    trained = [record for record in records if record["kind"] == "train"]
    points = [(event.step, event.value) for event in shown.Scalars("by_tokens/train_loss")]
    assert points == [(record["tokens_seen"], pytest.approx(record["loss"])) for record in trained]
    at = {0: 0, **{record["step"]: record["tokens_seen"] for record in trained}}
    evaluated = [(at[record["step"]], record["loss"]) for record in records if record["kind"] == "eval"]
    points = [(event.step, event.value) for event in shown.Scalars("by_tokens/eval_loss")]
    assert points == [(tokens, pytest.approx(loss)) for tokens, loss in evaluated]
    # A start that goes on from an earlier step than the one before had come to takes its points back.
    log = RunLog(tmp_path / "run", True, first_step=4, last_step=9, tensorboard=True, first_tokens=at[4])
    log.record("train", 5, {"loss": 1.0}, at[4] + 7)
    log.close()
    again = [event.step for event in shown.Reload().Scalars("by_tokens/train_loss")]
    assert again == [at[1], at[2], at[3], at[4], at[4] + 7]


def test_local_changes_with_bytes_that_are_no_text(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a.txt").write_bytes(b"one\n")
    git("add", "a.txt")
    git("commit", "-m", "a")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    assert "+caf\N{REPLACEMENT CHARACTER}" in provenance._git(tmp_path, "diff", "HEAD")


def test_a_run_notes_what_its_figures_are_reported_with(train, write_data, tmp_path):
    task = {"name": "copies", "format": 1}
    write_data(tmp_path / "train", 20, 1, report={"task": task, "left_out": 0})
    train(tmp_path / "run", **{"data.train": str(tmp_path / "train"), "optim.max_steps": 2})
    noted = parse_yaml((tmp_path / "run" / "config.yaml").read_text(), "config.yaml")["provenance"]
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert noted["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert noted["processes"] == 1 and "core" in noted["device"]
    assert (noted["data"]["task"], noted["data"]["sequence_length"]) == (task, 24)
    assert [len(hashes) for hashes in noted["data"]["fingerprints"].values()] == [1, 1, 0]
