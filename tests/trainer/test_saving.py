"""Saving against a disk that refuses, a process that is killed in between, and a loop that goes on meanwhile."""

import contextlib
import errno
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from longmix.trainer import checkpoint, checkpoint_files, saving
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
