"""Saving, file operation by file operation: killed in between, refused, damaged."""

import collections
import contextlib
import errno
import gc
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from longmix.trainer.checkpoints import folders, hashed_files, saving
from longmix.trainer.checkpoints.run_log import RunLog
from longmix.trainer.checkpoints.state import RunState, read_state
from longmix.trainer.processes.world import World
from longmix.trainer.settings.sections import CheckpointSection

ALONE = World(0, 1, torch.device("cpu"), None)
KILLED, WRONG = 9, 3


LAYOUT = {"stage": 0, "ranks": 1, "precision": "fp32"}
DATA = {"data.train": [64 * "0"], "data.eval": [], "data.test": []}


class Engine:
    """What saving asks of an engine."""

    def __init__(self):
        self.weight = torch.zeros(300)

    def collect(self, folder):
        weights = {"weight": self.weight}
        return {"layout.json": LAYOUT, "engine/mp_rank_00_model_states.pt": weights, "random.json": [1, 2, 3]}

    def gather(self):
        return {"weight": self.weight}


def write_model(folder, weights, state):
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


def step_to(run_state, engine, step):
    run_state.step = step
    engine.weight += step


def make(run, step=0, **section):
    """Saver, log, engine and state of a run that stands at `step`."""
    state, engine = RunState(step=step, data=DATA), Engine()
    log = RunLog(run, True, step, 99, tensorboard=False)
    return saving.Saver(run, CheckpointSection(**section), ALONE, log, state, 9), log, engine, state


class FileOperations:
    """Counts the file operations of this process while armed, and lets one of them fail or be the last.

    Writes of engine files are cut in the middle. What Rust does (safetensors) is not seen.
    """

    EVENTS = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.chmod", "os.truncate")

    def __init__(self):
        self.armed, self.count, self.at, self.act = False, 0, None, None
        sys.addaudithook(self._hear)
        write = hashed_files.HashedFile.write

        def counted_fsync(descriptor):
            self._meet()

        def counted_write(file, data):
            with file._noting():
                self._meet(lambda: os.write(file._file.fileno(), bytes(data)[: len(bytes(data)) // 2]))
            return write(file, data)

        os.fsync, hashed_files.HashedFile.write = counted_fsync, counted_write

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
        # Garbage of other tests stays: a group of gloo would wait here for threads that only the parent has.
        gc.freeze()
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


def test_a_latest_that_a_copy_has_made_a_folder_is_told_once(memory, capsys):
    latest = memory / "checkpoints" / "latest"
    latest.mkdir(parents=True)
    (latest / "state.json").write_text("copied")
    saver, _, engine, state = make(memory)
    for step in (2, 4, 6):
        step_to(state, engine, step)
        saver.save(engine, write_model)
    assert capsys.readouterr().err.count("latest is no link") == 1
    assert folders.steps(memory) == [2, 4, 6] and (latest / "state.json").read_text() == "copied"
    assert folders.newest(memory) == folders.path_of(memory, 6)


@pytest.mark.parametrize(
    ("case", "asynchronous"), [("next", False), pytest.param("same", True, marks=pytest.mark.full)]
)
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
        newest = folders.newest(run)
        assert newest is not None, f"operation {at}"
        assert len(torch.load(newest / "engine" / "mp_rank_00_model_states.pt", weights_only=True)["weight"]) == 300
        found.add(read_state(newest).step)
        latest = run / "checkpoints" / "latest"
        assert latest.exists() or case == "same", f"operation {at}"
        shutil.rmtree(run)
    assert code == 0 and at > 30
    assert found == ({4, 6} if case == "next" else {4})


def test_what_a_kill_behind_the_last_checkpoint_has_left_is_made_good(memory, monkeypatch):
    """The checkpoint is whole, and the run has no step left: no other save would do it."""
    engine, step = start_of("next", memory / "run")
    with monkeypatch.context() as patched:
        patched.setattr(folders, "point_to", lambda *arguments: [])
        patched.setattr(folders, "prune", lambda *arguments: [])
        saver, *_ = make(memory / "run", step, keep=1)
        saver.save(engine, write_model)
    checkpoints = memory / "run" / "checkpoints"
    (checkpoints / ".step-00000004.tmp").mkdir()
    saver, *_ = make(memory / "run", step, keep=1)
    saver.tidy()
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step-00000006"]
    assert os.readlink(checkpoints / "latest") == "step-00000006"


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
            newest = folders.newest(run)
            assert newest is not None and saver.newest.step in (4, 6), at
            written.add(read_state(newest).step)
            state.step = 8
            log.record("train", 8, {"loss": 1.0})
            saver.save(engine, write_model)
            assert folders.newest(run) == folders.path_of(run, 8), at
            hidden = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
            assert not hidden, (at, hidden)
            steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
            assert steps == [2, 4, 6, 8], (at, steps)
            shutil.rmtree(run)
        assert written == {4, 6} and at > 30

    assert in_a_child(work) == 0


def test_a_copy_shares_nothing_with_the_engine_and_keeps_what_its_parts_share():
    class Scaler:
        def __init__(self):
            self.rate = [1.0]

    tied = torch.nn.Parameter(torch.arange(6.0))
    state = collections.OrderedDict(a=tied, b=tied.detach(), c=tied.detach()[2:4], scaler=Scaler())
    state._metadata = {"": {"version": 2}}
    copied = hashed_files.copy_to_host({"module": state, "list": [(1, tied)]})
    scaler, copied_scaler = state["scaler"], copied["module"]["scaler"]
    scaler.rate = [2.0]
    with torch.no_grad():
        tied.zero_()
    module = copied["module"]
    assert module["b"].tolist() == [0, 1, 2, 3, 4, 5] and module["c"].tolist() == [2, 3]
    assert isinstance(module["a"], torch.nn.Parameter) and copied["list"][0][1] is module["a"]
    assert copied_scaler.rate == [1.0] and module._metadata == state._metadata
    pair = hashed_files.copy_to_host({"one": tied.detach(), "two": tied.detach()})
    assert pair["one"].data_ptr() == pair["two"].data_ptr() != tied.data_ptr()


class OnGPU(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_the_copies_of_a_gpus_tensors_are_pinned_and_on_their_way_at_once(monkeypatch):
    pinned, waits = [], []
    empty_like = torch.empty_like

    def recording(value, device, pin_memory):
        pinned.append(pin_memory)
        return empty_like(value.as_subclass(torch.Tensor), device=device)

    monkeypatch.setattr(torch, "empty_like", recording)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(pinned)))
    value = torch.arange(6.0).reshape(2, 3).T
    found = hashed_files.copy_to_host([value, value.as_subclass(OnGPU)])
    assert pinned == [False, True] and waits == [2]
    assert all(torch.equal(copied, value) and copied.data_ptr() != value.data_ptr() for copied in found)


@pytest.mark.parametrize(
    ("asynchronous", "parameters", "is_behind"),
    [("auto", 2**30 // 12, False), ("auto", 2**30 // 12 + 1, True), (True, 1, True), (False, 10**9, False)],
)
def test_a_large_state_is_written_behind_the_loop_by_default(tmp_path, asynchronous, parameters, is_behind):
    section, log = CheckpointSection(asynchronous=asynchronous), None
    assert saving.Saver(tmp_path, section, ALONE, log, RunState(), parameters).is_behind is is_behind


def test_what_the_disk_refuses_is_told_from_other_errors():
    reason = hashed_files.reason_of_refusal
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
    write = hashed_files.HashedFile.write

    def damaging(file, data):
        done = write(file, data)
        os.pwrite(file._file.fileno(), b"?", 40)
        return done

    monkeypatch.setattr(hashed_files.HashedFile, "write", damaging)
    step_to(state, engine, 4)
    saver.save(engine, write_model)
    # The one before is not deleted for one that is not what was written.
    assert saver.newest.step == 2 and folders.steps(tmp_path / "run") == [2]


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
            assert folders.newest(run) == folders.path_of(run, 2)
            (run / "checkpoints").chmod(0o700)
            step_to(state, engine, 6)
            saver.save(engine, write_model)
            assert folders.newest(run) == folders.path_of(run, 6)

        assert in_a_child(work) == 0
