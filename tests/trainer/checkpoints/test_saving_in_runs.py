"""Runs whose disk refuses a checkpoint, and runs that write theirs behind the step loop."""

import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
import torch

from longmix.trainer import cli
from longmix.trainer.checkpoints import folders, hashed_files, saving
from longmix.trainer.engines import state_files
from longmix.trainer.export import publish
from longmix.trainer.many_runs import read
from longmix.trainer.run import loop


def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def refuse_steps(monkeypatch):
    """refuse_steps({step: attempts}): the disk refuses so many attempts to write the checkpoint of a step."""

    def arrange(attempts):
        write = hashed_files.HashedFile.write

        def refusing(file, data):
            step = int(Path(file._file.name).parent.name[6:14])
            if file.refusal is None and attempts.get(step, 0) > 0:
                attempts[step] -= 1
                with file._noting():
                    refuse()
            return write(file, data)

        monkeypatch.setattr(hashed_files.HashedFile, "write", refusing)
        monkeypatch.setattr(saving, "PAUSES", (0.0, 0.0, 0.0))

    return arrange


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_told_and_the_run_goes_on(
    train, read_metrics, refuse_steps, untimed, tmp_path, capsys, asynchronous
):
    changes = {"checkpoint.keep": 9, "optim.max_steps": 8}
    train(tmp_path / "reference", **changes)
    refuse_steps({2: 1, 6: 1})
    # One failure in a row, twice.
    changes = {**changes, "checkpoint.max_failures": 1, "checkpoint.asynchronous": asynchronous}
    assert train(tmp_path / "run", **changes).code == 0
    told = capsys.readouterr().err
    assert "the checkpoint of step 2 could not be written" in told and "No space left on device (rank 0)" in told
    assert "that of step 4 stays, and the run goes on to the next (failure 1 in a row of 1" in told
    assert folders.steps(tmp_path / "run") == [4, 8]
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))


@pytest.mark.parametrize(("allowed", "last"), [(0, 2), (2, 6)])
def test_too_many_failures_in_a_row_end_the_run_and_it_goes_on_once_there_is_room(
    train, refuse_steps, tmp_path, allowed, last
):
    attempts = dict.fromkeys(range(10), 99)
    refuse_steps(attempts)
    changes = {"checkpoint.max_failures": allowed, "optim.max_steps": 8}
    expected = rf"step {last} could not be .* failure {allowed + 1} in a row, .* is {allowed}; that of step 0 is whole"
    with pytest.raises(loop.SharedFault, match=expected):
        train(tmp_path / "run", **changes)
    assert folders.steps(tmp_path / "run") == []
    attempts.clear()
    assert train(tmp_path / "run", **changes).code == 0


def test_a_last_chance_is_taken_several_times(train, refuse_steps, tmp_path, capsys):
    refuse_steps({6: 2})
    assert train(tmp_path / "run", **{"checkpoint.max_failures": 0}).code == 0
    assert capsys.readouterr().err.count("it is tried again") == 2
    refuse_steps({3: 3})
    assert train(tmp_path / "stopped", **{"run.stop_at_step": 3, "checkpoint.max_failures": 0}).state.step == 3
    assert folders.steps(tmp_path / "stopped")[-1] == 3


def test_a_stop_without_a_checkpoint_says_where_the_run_goes_on(train, refuse_steps, tmp_path, capsys):
    attempts = {3: 99, 6: 99}
    refuse_steps(attempts)
    outcome = train(tmp_path / "run", **{"run.stop_at_step": 3})
    assert outcome.code == 75 and "or null, goes on from step 2" in capsys.readouterr().err
    with pytest.raises(loop.SharedFault, match=r"last step is done, but its .* the same command goes on from step 4"):
        train(tmp_path / "run")
    attempts.clear()
    assert train(tmp_path / "run").code == 0


def test_what_was_not_written_is_not_the_best(train, read_metrics, refuse_steps, tmp_path):
    changes = {"checkpoint.best": {"metric": "loss", "mode": "min"}, "eval.every_steps": 2, "optim.lr": 2e-2}
    refuse_steps({4: 1})
    outcome = train(tmp_path / "run", **changes, **{"run.stop_at_step": 5})
    losses = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run", "eval")}
    assert losses[4] < losses[2] and outcome.state.best_step == 2
    assert outcome.state.best_value == outcome.state.figures["loss"] == losses[2]
    assert train(tmp_path / "run", **changes).code == 0


def test_written_behind_the_loop_a_checkpoint_is_that_of_its_step(train, read_metrics, untimed, tmp_path, monkeypatch):
    changes = {"checkpoint.keep": 9, "model.hidden_dropout_prob": 0.1}
    train(tmp_path / "reference", **changes)
    goes_on, write, asked = threading.Event(), saving._write, loop.StopConditions.asked

    def late(*arguments):
        assert goes_on.wait(60)
        return write(*arguments)

    def asking(self, step=0):
        if step == 4:  # two steps after the checkpoint that is still being written
            goes_on.set()
        return asked(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(saving, "_write", late)
        patched.setattr(loop.StopConditions, "asked", asking)
        train(tmp_path / "run", **changes, **{"checkpoint.asynchronous": True})
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))
    assert folders.steps(tmp_path / "run") == [2, 4, 6]
    for step in (2, 4, 6):
        ours, theirs = (folders.path_of(tmp_path / name, step) for name in ("run", "reference"))
        assert (ours / "state.json").read_bytes() == (theirs / "state.json").read_bytes()
        assert_same(*(state_files.read(folder) for folder in (ours, theirs)))
        assert len({(folder / "random.json").read_bytes() for folder in (ours, theirs)}) == 1
        for name in ("model.safetensors", "config.json", "README.md"):
            contents = (ours / "model" / name).read_text("latin-1").replace("# run", "# reference")
            assert contents == (theirs / "model" / name).read_text("latin-1")
    # Resumed from it, the run is the same.
    for step in (4, 6):
        shutil.rmtree(folders.path_of(tmp_path / "run", step))
    assert train(tmp_path / "run", **changes).code == 0
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other


def test_all_is_on_the_disk_before_the_checkpoint_exists(train, tmp_path, monkeypatch):
    """What a power cut would leave: nothing is renamed that is not flushed, nor before metrics.jsonl is."""
    fsync, replace, run = os.fsync, os.replace, tmp_path / "run"
    flushed, renamed = {}, []

    def noted_fsync(descriptor):
        flushed[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size
        fsync(descriptor)

    def noted_replace(source, target, **arguments):
        source = Path(source)
        if source.name.startswith(".step-"):
            renamed.append(source.name)
            paths = [run / "metrics.jsonl", *(path for path in source.rglob("*") if path.name != "manifest.json")]
            for path in [*paths, source / "manifest.json"]:
                assert path.stat().st_ino in flushed, path
                assert path.is_dir() or flushed[path.stat().st_ino] == path.stat().st_size, path
            flushed.clear()
        replace(source, target, **arguments)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    train(run)
    assert len(renamed) == 3
    assert (run / "checkpoints").stat().st_ino in flushed  # the last rename itself


def test_files_have_the_mode_of_the_users_umask(train, tmp_path):
    before = os.umask(0o027)
    try:
        train(tmp_path / "run", **{"log.tensorboard": True, "checkpoint.asynchronous": True})
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "run").rglob("*")}
    wrong = {path: oct(mode) for path, mode in modes.items() if mode != (0o750 if path.is_dir() else 0o640)}
    assert {path.name for path in wrong} == {"latest"}, wrong


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_a_run_folder_that_was_away_is_gone_on_with(train, read_metrics, untimed, tmp_path, monkeypatch, capsys):
    changes = {"optim.max_steps": 8, "log.tensorboard": True, "checkpoint.keep": 9}
    train(tmp_path / "reference", **changes)
    asked = loop.StopConditions.asked

    def moving(self, step=0):
        if step == 3:
            (tmp_path / "run").rename(tmp_path / "away")
        if step == 5:
            (tmp_path / "away").rename(tmp_path / "run")
        return asked(self, step)

    monkeypatch.setattr(loop.StopConditions, "asked", moving)
    assert train(tmp_path / "run", **changes).code == 0
    assert "the checkpoint of step 4 could not be written" in (told := capsys.readouterr().err), told
    assert folders.steps(tmp_path / "run") == [2, 6, 8] and not (tmp_path / "away").exists()
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))


def test_a_model_that_cannot_be_published_is_the_users_to_mend(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(publish, "publish", lambda *arguments: refuse())
        with pytest.raises(
            loop.SharedFault, match=r"model could not be written: .*No space left.* the same command writes"
        ):
            train(tmp_path / "run")
    assert train(tmp_path / "run").code == 0 and (tmp_path / "run" / "model" / "config.json").exists()


@pytest.mark.full
@pytest.mark.parametrize("follows_links", [False, True])
def test_a_copied_run_goes_on(train, read_metrics, untimed, tmp_path, capsys, follows_links):
    """As `cp -r` and `cp -rL` copy it: `latest` is a link, or a folder."""
    train(tmp_path / "whole")
    train(tmp_path / "run", **{"run.stop_at_step": 4})
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=not follows_links)
    capsys.readouterr()
    assert train(tmp_path / "copy").code == 0
    assert capsys.readouterr().err.count("latest is no link") == follows_links
    assert untimed(read_metrics(tmp_path / "copy")) == untimed(read_metrics(tmp_path / "whole"))
    assert read.read_run(tmp_path / "copy").problem is None
    assert cli.main(["export", str(tmp_path / "copy"), "--output", str(tmp_path / "exported")]) == 0
