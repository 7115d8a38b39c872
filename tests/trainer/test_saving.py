"""Saving against a disk that refuses, a process that is killed in between, and a loop that goes on meanwhile."""

import collections
import contextlib
import errno
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from longmix.data_prep.errors import UserError
from longmix.trainer import checkpoint, checkpoint_files, loop, saving
from longmix.trainer.checkpoint import RunState
from longmix.trainer.configuration import CheckpointSection
from longmix.trainer.distributed import World
from longmix.trainer.run_log import RunLog

ALONE = World(0, 1, torch.device("cpu"), None)
KILLED, WRONG = 9, 3
TIMED = ("tokens_per_second", "data_wait_fraction")


class Engine:
    """What saving asks of an engine."""

    def __init__(self):
        self.weight = torch.zeros(300)

    def collect(self, folder):
        return {"engine/part.pt": {"weight": self.weight}, "random-00000.pt": [1, 2, 3]}

    def gather(self):
        return {"weight": self.weight}


def write_model(folder, weights, state):
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "README.md").write_text(f"step {state.step}")


def step_to(run_state, engine, step):
    run_state.step = step
    engine.weight += step


def make(run, step=0, **section):
    """Saver, log, engine and state of a run that stands at `step`."""
    state, engine = RunState(step=step), Engine()
    log = RunLog(run, True, step, 99, tensorboard=False)
    return saving.Saver(run, CheckpointSection(**section), ALONE, log, state), log, engine, state


class FileOperations:
    """Counts the file operations of this process while armed, and lets one of them fail or be the last.

    Writes of engine files are cut in the middle. What Rust does (safetensors) is not seen.
    """

    EVENTS = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.chmod", "os.truncate")

    def __init__(self):
        self.armed, self.count, self.at, self.act = False, 0, None, None
        sys.addaudithook(self._hear)
        write = checkpoint_files.HashedFile.write

        def counted_fsync(descriptor):
            self._meet()

        def counted_write(file, data):
            with file._noting():
                self._meet(lambda: os.write(file._file.fileno(), bytes(data)[: len(bytes(data)) // 2]))
            return write(file, data)

        os.fsync, checkpoint_files.HashedFile.write = counted_fsync, counted_write

    def _hear(self, event, arguments):
        if event in self.EVENTS or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            self._meet()

    def _meet(self, first=lambda: None):
        if self.armed:
            self.count += 1
            if self.count == self.at:
                first()
                self.act()


def die():
    os._exit(KILLED)


def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_a_child(work):
    """Exit code of a forked process that does `work`."""
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stderr(io.StringIO()) as heard:
            try:
                work()
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{heard.getvalue()}\n{error!r}\n".encode())
            finally:
                os._exit(WRONG)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def memory(monkeypatch):
    """A folder in memory where there is one, and nothing is flushed: a kill, unlike a power cut, loses nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def start_of(case, folder):
    """A run that has saved and is about to: step 6 beside 2 and 4, of which 2 goes; or step 4, its only one, again."""
    folder.mkdir()
    saver, log, engine, state = make(folder)
    for step in (2, 4) if case == "next" else (4,):
        step_to(state, engine, step)
        log.record("train", step, {"loss": 1.0})
        saver.save(engine, write_model)
    step_to(state, engine, 6 if case == "next" else 4)
    log.record("train", state.step, {"loss": 1.0})
    log.close()
    return engine, state.step


@pytest.mark.parametrize(("case", "asynchronous"), [("next", False), ("same", True)])
def test_killed_between_any_two_file_operations_a_whole_checkpoint_is_found(memory, case, asynchronous):
    engine, step = start_of(case, memory / "start")
    found, at, code = set(), 0, KILLED
    while code == KILLED:
        at += 1
        run = memory / "run"
        shutil.copytree(memory / "start", run, symlinks=True)

        def work(run=run, at=at):
            operations = FileOperations()
            saver, *_ = make(run, step, asynchronous=asynchronous, keep=2)
            operations.at, operations.act, operations.armed = at, die, True
            saver.save(engine, write_model)
            saver.wait()

        code = in_a_child(work)
        newest = checkpoint.newest(run)
        assert newest is not None, f"operation {at}"
        assert len(torch.load(newest / "engine" / "part.pt", weights_only=True)["weight"]) == 300
        found.add(checkpoint.read_state(newest).step)
        latest = run / "checkpoints" / "latest"
        assert latest.exists() or case == "same", f"operation {at}"
        shutil.rmtree(run)
    assert code == 0 and at > 30
    assert found == ({4, 6} if case == "next" else {4})


def test_refused_at_any_file_operation_the_run_goes_on_and_saves_the_next_time(memory):
    engine, step = start_of("next", memory / "start")

    def work():
        operations = FileOperations()
        written, at, operations.count = set(), 0, 1
        while operations.count >= at:
            at += 1
            run = memory / "run"
            shutil.copytree(memory / "start", run, symlinks=True)
            saver, log, _, state = make(run, step, keep=2)
            operations.count, operations.at, operations.act, operations.armed = 0, at, refuse, True
            saver.save(engine, write_model)
            operations.armed = False
            newest = checkpoint.newest(run)
            assert newest is not None and saver.newest.step in (4, 6), at
            written.add(checkpoint.read_state(newest).step)
            state.step = 8
            log.record("train", 8, {"loss": 1.0})
            saver.save(engine, write_model)
            assert checkpoint.newest(run) == checkpoint.path_of(run, 8), at
            hidden = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
            assert not hidden, (at, hidden)
            steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
            assert steps == [2, 4, 6, 8], (at, steps)
            shutil.rmtree(run)
        assert written == {4, 6} and at > 30

    assert in_a_child(work) == 0


@pytest.fixture
def refuse_steps(monkeypatch):
    """refuse_steps({step: attempts}): the disk refuses so many attempts to write the checkpoint of a step."""

    def arrange(attempts):
        write = checkpoint_files.HashedFile.write

        def refusing(file, data):
            step = int(Path(file._file.name).parent.name[6:14])
            if file.bytes and file.refusal is None and attempts.get(step, 0) > 0:
                attempts[step] -= 1
                with file._noting():
                    refuse()
            return write(file, data)

        monkeypatch.setattr(checkpoint_files.HashedFile, "write", refusing)
        monkeypatch.setattr(saving, "PAUSES", (0.0, 0.0, 0.0))

    return arrange


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_told_and_the_run_goes_on(train, read_metrics, refuse_steps, tmp_path, capsys, asynchronous):
    changes = {"checkpoint.keep": 9, "optim.max_steps": 8}
    train(tmp_path / "reference", **changes)
    refuse_steps({2: 1, 6: 1})
    # One failure in a row, twice.
    changes = {**changes, "checkpoint.max_failures": 1, "checkpoint.asynchronous": asynchronous}
    assert train(tmp_path / "run", **changes).code == 0
    told = capsys.readouterr().err
    assert "the checkpoint of step 2 could not be written" in told and "No space left on device (rank 0)" in told
    assert "that of step 4 stays, and the run goes on to the next (failure 1 in a row of 1" in told
    assert checkpoint.steps(tmp_path / "run") == [4, 8]
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))


def untimed(records):
    return [{name: value for name, value in record.items() if name not in TIMED} for record in records]


@pytest.mark.parametrize(("allowed", "last"), [(0, 2), (2, 6)])
def test_too_many_failures_in_a_row_end_the_run_and_it_goes_on_once_there_is_room(
    train, refuse_steps, tmp_path, allowed, last
):
    attempts = dict.fromkeys(range(10), 99)
    refuse_steps(attempts)
    changes = {"checkpoint.max_failures": allowed, "optim.max_steps": 8}
    expected = rf"step {last} could not be .* failure {allowed + 1} in a row, .* is {allowed}; that of step 0 is whole"
    with pytest.raises(loop.SharedMistake, match=expected):
        train(tmp_path / "run", **changes)
    assert checkpoint.steps(tmp_path / "run") == []
    attempts.clear()
    assert train(tmp_path / "run", **changes).code == 0


def test_a_last_chance_is_taken_several_times(train, refuse_steps, tmp_path, capsys):
    refuse_steps({6: 2})
    assert train(tmp_path / "run", **{"checkpoint.max_failures": 0}).code == 0
    assert capsys.readouterr().err.count("it is tried again") == 2
    refuse_steps({3: 3})
    assert train(tmp_path / "stopped", **{"run.stop_at_step": 3, "checkpoint.max_failures": 0}).state.step == 3
    assert checkpoint.steps(tmp_path / "stopped")[-1] == 3


def test_a_stop_without_a_checkpoint_says_where_the_run_goes_on(train, refuse_steps, tmp_path, capsys):
    attempts = {3: 99, 6: 99}
    refuse_steps(attempts)
    outcome = train(tmp_path / "run", **{"run.stop_at_step": 3})
    assert outcome.code == 75 and "the same command goes on from step 2" in capsys.readouterr().err
    with pytest.raises(loop.SharedMistake, match=r"last step is done, but its .* the same command goes on from step 4"):
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


def test_written_behind_the_loop_a_checkpoint_is_that_of_its_step(train, read_metrics, tmp_path, monkeypatch):
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
    assert checkpoint.steps(tmp_path / "run") == [2, 4, 6]
    for step in (2, 4, 6):
        ours, theirs = (checkpoint.path_of(tmp_path / name, step) for name in ("run", "reference"))
        assert (ours / "state.json").read_bytes() == (theirs / "state.json").read_bytes()
        assert_same(*(torch.load(folder / "engine.pt", weights_only=True) for folder in (ours, theirs)))
        assert len({(folder / "random-00000.json").read_bytes() for folder in (ours, theirs)}) == 1
        for name in ("model.safetensors", "config.json", "README.md"):
            contents = (ours / "model" / name).read_text("latin-1").replace("# run", "# reference")
            assert contents == (theirs / "model" / name).read_text("latin-1")
    # Resumed from it, the run is the same.
    for step in (4, 6):
        shutil.rmtree(checkpoint.path_of(tmp_path / "run", step))
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


def test_a_copy_shares_nothing_with_the_engine_and_keeps_what_its_parts_share():
    class Scaler:
        def __init__(self):
            self.rate = [1.0]

    tied = torch.nn.Parameter(torch.arange(6.0))
    state = collections.OrderedDict(a=tied, b=tied.detach(), c=tied.detach()[2:4], scaler=Scaler())
    state._metadata = {"": {"version": 2}}
    copied = checkpoint_files.copy_to_host({"module": state, "list": [(1, tied)]})
    scaler, copied_scaler = state["scaler"], copied["module"]["scaler"]
    scaler.rate = [2.0]
    with torch.no_grad():
        tied.zero_()
    module = copied["module"]
    assert module["b"].tolist() == [0, 1, 2, 3, 4, 5] and module["c"].tolist() == [2, 3]
    assert isinstance(module["a"], torch.nn.Parameter) and copied["list"][0][1] is module["a"]
    assert copied_scaler.rate == [1.0] and module._metadata == state._metadata
    pair = checkpoint_files.copy_to_host({"one": tied.detach(), "two": tied.detach()})
    assert pair["one"].data_ptr() == pair["two"].data_ptr() != tied.data_ptr()


def test_what_the_disk_refuses_is_told_from_other_errors():
    reason = checkpoint_files.reason_of_refusal
    assert reason(OSError(errno.EDQUOT, "Disk quota exceeded", "/a/b")) == "Disk quota exceeded (/a/b)"
    assert reason(SafetensorError("Error while serializing: I/O error: ... (os error 28)")) == os.strerror(errno.ENOSPC)
    assert reason(ValueError("a mistake of ours")) is None


def test_another_error_than_the_disks_is_not_swallowed(tmp_path):
    (tmp_path / "run").mkdir()
    saver, _, engine, state = make(tmp_path / "run", asynchronous=True)
    step_to(state, engine, 2)

    def failing(*arguments):
        raise ValueError("a mistake of ours")

    saver.save(engine, failing)
    with pytest.raises(ValueError, match="a mistake of ours"):
        saver.wait()


def test_what_is_read_back_is_what_was_written(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    saver, _, engine, state = make(tmp_path / "run", keep=1)
    step_to(state, engine, 2)
    saver.save(engine, write_model)
    write = checkpoint_files.HashedFile.write

    def damaging(file, data):
        done = write(file, data)
        os.pwrite(file._file.fileno(), b"?", 40)
        return done

    monkeypatch.setattr(checkpoint_files.HashedFile, "write", damaging)
    step_to(state, engine, 4)
    saver.save(engine, write_model)
    # The one before is not deleted for one that is not what was written.
    assert saver.newest.step == 2 and checkpoint.steps(tmp_path / "run") == [2]


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
def test_a_run_folder_that_was_away_is_gone_on_with(train, read_metrics, tmp_path, monkeypatch, capsys):
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
    assert checkpoint.steps(tmp_path / "run") == [2, 6, 8] and not (tmp_path / "away").exists()
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(tmp_path / "reference"))


def test_a_lost_permission_is_told_and_the_last_good_checkpoint_stays():
    """In a process that is no administrator, to whom everything is permitted."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)
            os.chown(run, 65534, 65534)

        def work():
            if os.geteuid() == 0:
                os.seteuid(65534)
            saver, _, engine, state = make(run)
            step_to(state, engine, 2)
            saver.save(engine, write_model)
            (run / "checkpoints").chmod(0o500)
            step_to(state, engine, 4)
            with contextlib.redirect_stderr(io.StringIO()) as told:
                saver.save(engine, write_model)
            assert "the checkpoint of step 4 could not be written" in told.getvalue()
            assert "Permission denied" in told.getvalue()
            assert checkpoint.newest(run) == checkpoint.path_of(run, 2)
            (run / "checkpoints").chmod(0o700)
            step_to(state, engine, 6)
            saver.save(engine, write_model)
            assert checkpoint.newest(run) == checkpoint.path_of(run, 6)

        assert in_a_child(work) == 0


def test_a_model_that_cannot_be_published_is_the_users_to_mend(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(loop.export, "publish", lambda *arguments: refuse())
        with pytest.raises(UserError, match=r"model could not be written: .*No space left.* the same command writes"):
            train(tmp_path / "run")
    assert train(tmp_path / "run").code == 0 and (tmp_path / "run" / "model" / "config.json").exists()
