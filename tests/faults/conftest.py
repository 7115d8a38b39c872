"""Runs of the real command in real processes, killed at moments that a seed draws."""

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location(
    "trainer_conftest", Path(__file__).parents[1] / "trainer" / "conftest.py"
)
_trainer = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_trainer)
data, run_values, write_run_file = _trainer.data, _trainer.run_values, _trainer.write_run_file
read_metrics, start = _trainer.read_metrics, _trainer.start

LONGEST_SECONDS = 600
EVALUATE_EVERY = 4
# About what an evaluation or a step takes.
SECONDS = 0.02
TIMED = ("tokens_per_second", "data_wait_fraction", "mfu", "gpu_memory_gib")

COMMON = {
    "optim.max_steps": 40,
    "checkpoint.every_steps": 3,
    "eval.every_steps": EVALUATE_EVERY,
    "eval.samples": 40,
    "run.check_every": 5,
    "optim.skip_spikes": True,
    "model.hidden_dropout_prob": 0.1,
}
# Name: (model type, processes, changes to the run file).
SETTINGS = {
    "two ranks": ("s3attention", 2, {"deepspeed": "zero1"}),
    "behind the loop": (
        "transformer",
        2,
        # Rotary positions, the default, and Muon: the recipe for small budgets in DeepSpeed.
        {
            "deepspeed": "zero2",
            "precision": "bf16",
            "checkpoint.asynchronous": True,
            "optim.name": "muon",
            "optim.update_rms": 0.5,
            "optim.momentum": 0.9,
        },
    ),
    "stage 3": ("converter", 2, {"deepspeed": "zero3"}),
    "one rank": (
        "paramixer",
        1,
        {
            "deepspeed": None,
            "checkpoint.asynchronous": True,
            "checkpoint.best": {"metric": "loss", "mode": "min"},
        },
    ),
}


@dataclass(frozen=True)
class Fault:
    """A SIGKILL to come.

    Attributes:
        kind: what it is to fall into: start, step, evaluation or save.
        victim: a rank, "all" ranks, or the "launcher", which takes its ranks with it.
        after: steps to make first.
        delay: how far into it, as a share.
    """

    kind: str
    victim: int | str
    after: int
    delay: float


@dataclass
class Kill:
    """What a fault has come to.

    Attributes:
        kind: what it fell into; no kill is made in anything else than what it was meant for.
        reached: the last step that was recorded before it.
        seconds: until no process of the run was left.
        resumed: the step that the next start went on from, by its own words; 0 if it began anew.
    """

    kind: str
    victim: int | str
    reached: int
    seconds: float
    resumed: int = 0

    def __str__(self):
        whom = f"rank {self.victim}" if isinstance(self.victim, int) else self.victim
        return f"{whom} in {self.kind} after step {self.reached}, resumed from {self.resumed}"


@dataclass
class Run:
    """A run that was begun, killed, and resumed until it was done."""

    folder: Path
    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0


class Start:
    """One start of `longmix train RUN_FILE`.

    Attributes:
        seconds_to_begin: until its first record; None before a fault has waited for more than that.
        seconds: until somebody who waited for its end saw it.
    """

    def __init__(self, folder: Path, run_file: str, processes: int, console: Path):
        self._folder, self._processes, self._console = folder / "checkpoints", processes, console
        self._unfinished_before = self._unfinished()
        self._base = max((int(path.name[5:]) for path in self._folder.glob("step-*")), default=0)
        self._began = time.monotonic()
        self.seconds_to_begin: float | None = None
        self.seconds: float | None = None
        command = [sys.executable, "-m", "longmix.trainer", "train", run_file, "--processes", str(processes)]
        with open(console, "wb") as output:
            self.process = subprocess.Popen(
                command, env=_trainer.clean_environment(), stdout=output, stderr=output, start_new_session=True
            )

    def text(self) -> str:
        return self._console.read_text()

    def wait(self) -> int:
        """The exit code."""
        try:
            code = self.process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end within {LONGEST_SECONDS} s:\n{self.text()}")
        self.seconds = self.seconds or time.monotonic() - self._began
        return code

    def end(self) -> None:
        """Leave nothing behind, if the test has failed."""
        if self.process.poll() is None:
            self.process.kill()  # its ranks go with it
            self.process.wait()

    def resumed(self) -> int:
        """The step that it says to go on from."""
        found = re.search(r"^going on from step (\d+)$", self.text(), re.MULTILINE)
        return int(found[1]) if found else 0

    def strike(self, fault: Fault, seconds_to_begin: float) -> Kill | None:
        """Kill at the moment of the fault; None if the run is over first.

        All ranks are held for a moment before: so it is certain what the kill falls into.
        """
        deadline = time.monotonic() + LONGEST_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"no {fault} within {LONGEST_SECONDS} s:\n{self.text()}"
            ranks = self._ranks()
            if not ranks or not self._is_time(fault, seconds_to_begin):
                time.sleep(0.02 if self._recorded()[0] is None else 0.001)
                continue
            _hold(ranks.values())
            kill = None
            if self._at() == fault.kind:
                kill = Kill(fault.kind, fault.victim, self._recorded()[1], time.monotonic())
                victims = {"launcher": [self.process.pid], "all": ranks.values()}
                for process in victims.get(fault.victim) or [ranks[fault.victim]]:
                    os.kill(process, signal.SIGKILL)
            for process in ranks.values():
                _send(process, signal.SIGCONT)
            if kill is not None:
                code = self.wait()
                while any(_state(process) not in "ZX" for process in ranks.values()):
                    assert time.monotonic() < deadline, f"outlived {kill}:\n{self.text()}"
                    time.sleep(0.005)
                kill.seconds = time.monotonic() - kill.seconds
                self._check_end(code, fault.victim)
                return kill
        return None

    def _check_end(self, code: int, victim: int | str) -> None:
        text = self.text()
        if victim == "launcher" or self._processes == 1:
            assert code == -signal.SIGKILL, text
        else:
            killed = re.findall(r"^longmix: rank (\d) was killed by SIGKILL", text, re.MULTILINE)
            assert code == 1 and len(killed) == 1 and victim in ("all", int(killed[0])), text

    def _is_time(self, fault: Fault, seconds_to_begin: float) -> bool:
        what, step = self._recorded()
        if what is not None and self.seconds_to_begin is None:
            self.seconds_to_begin = time.monotonic() - self._began
        if fault.kind == "start":
            return time.monotonic() - self._began >= fault.delay * seconds_to_begin
        if fault.kind == "save":
            step, files = self._saving() or (0, 0)
            whole = max((_count_files(path) for path in self._folder.glob("step-*")), default=0)
            return step >= self._base + fault.after and files >= int(fault.delay * whole)
        if step < self._base + fault.after or self._at() != fault.kind:
            return False
        time.sleep(fault.delay * SECONDS)
        return True

    def _at(self) -> str:
        """What the run is at."""
        what, step = self._recorded()
        if self._saving() is not None:
            return "save"
        if what is None:
            return "start"
        return "evaluation" if what == "train" and step % EVALUATE_EVERY == 0 else "step"

    def _recorded(self) -> tuple[str | None, int]:
        """(train or eval, step) of this start's last record, as its console shows it."""
        found = re.findall(r"^(train|eval) (\d+)/", self.text(), re.MULTILINE)
        return (found[-1][0], int(found[-1][1])) if found else (None, self._base)

    def _saving(self) -> tuple[int, int] | None:
        """(step, files so far) of the checkpoint that is being written."""
        for name, status in self._unfinished().items():
            if self._unfinished_before.get(name) != status:
                return int(name[6:-4]), _count_files(self._folder / name)
        return None

    def _unfinished(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self._folder.glob(".step-*.tmp"):
            with contextlib.suppress(OSError):  # it has just been finished
                status = path.stat()
                found[path.name] = (status.st_ino, status.st_mtime_ns)
        return found

    def _ranks(self) -> dict[int, int]:
        """The process of every rank; empty until all have been started."""
        if self._processes == 1:
            return {0: self.process.pid}
        found = {}
        for process in _read(f"/proc/{self.process.pid}/task/{self.process.pid}/children").split():
            rank = re.search(r"(?:^|\0)RANK=(\d+)\0", _read(f"/proc/{process}/environ"))
            if rank is not None:
                found[int(rank[1])] = int(process)
        return found if len(found) == self._processes else {}


def _count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _state(process: int) -> str:
    """R, S, T (held), Z (ended), ...; X for one that has gone."""
    return (_read(f"/proc/{process}/stat").rpartition(")")[2].split() or ["X"])[0]


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _hold(processes) -> None:
    for process in processes:
        _send(process, signal.SIGSTOP)
    while any(_state(process) not in "TZX" for process in processes):
        time.sleep(0.0001)


@pytest.fixture(scope="session")
def faulty_runs(tmp_path_factory, run_values, write_run_file):
    """A `FaultyRuns`."""
    runs = FaultyRuns(tmp_path_factory.mktemp("faults"), run_values, write_run_file)
    yield runs
    for start in runs.started:
        start.end()


class FaultyRuns:
    """Runs with faults, and what they are held against: one undisturbed run of each setting."""

    def __init__(self, folder: Path, run_values, write_run_file):
        self._folder, self._run_values, self._write = folder, run_values, write_run_file
        self._references: dict[str, tuple[Path, Start]] = {}
        self.started: list[Start] = []

    def _start(self, folder: Path, setting: str) -> Start:
        model_type, processes, changes = SETTINGS[setting]
        values = self._run_values(folder, model_type, **{**COMMON, **changes})
        run_file = self._write(folder.with_suffix(".yaml"), values)
        console = folder.with_name(f"{folder.name}-{len(self.started)}.log")
        self.started.append(Start(folder, run_file, processes, console))
        return self.started[-1]

    def undisturbed(self, setting: str) -> Start:
        """The start of the setting's reference, which goes on in the background."""
        if setting not in self._references:
            folder = self._folder / f"{setting} undisturbed"
            self._references[setting] = (folder, self._start(folder, setting))
        return self._references[setting][1]

    def run(self, name: str, setting: str, faults: list[Fault]) -> Run:
        """Start, kill, and start again until the run is done."""
        run = Run(self._folder / name)
        began, seconds_to_begin = time.monotonic(), LONGEST_SECONDS
        for fault in faults:
            start = self._start(run.folder, setting)
            kill = start.strike(fault, 0.8 * seconds_to_begin)
            self._note_resumed(run, start)
            if kill is None:
                break
            run.kills.append(kill)
            seconds_to_begin = min(seconds_to_begin, start.seconds_to_begin or LONGEST_SECONDS)
        else:
            start = self._start(run.folder, setting)
        code = start.wait()
        assert code == 0, start.text()
        if faults:
            self._note_resumed(run, start)
        run.seconds = time.monotonic() - began
        return run

    def _note_resumed(self, run: Run, start: Start) -> None:
        assert "passed over" not in start.text(), start.text()
        if run.kills and start.resumed():
            run.kills[-1].resumed = start.resumed()

    def assert_as_undisturbed(self, run: Run, setting: str) -> None:
        start = self.undisturbed(setting)
        assert start.wait() == 0, start.text()
        reference = self._references[setting][0]
        assert _lines(run.folder) == _lines(reference), run.kills
        for name in ("model.safetensors", "config.json"):
            one, other = ((folder / "model" / name).read_bytes() for folder in (run.folder, reference))
            assert one == other, (name, run.kills)
        one, other = _last_checkpoint(run.folder), _last_checkpoint(reference)
        assert set(one) == set(other)
        assert [name for name in one if one[name] != other[name]] == [], run.kills


def _lines(folder: Path) -> list[dict]:
    """Every line of metrics.jsonl, but for what is measured with a clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMED} for line in lines]


def _last_checkpoint(folder: Path) -> dict[str, Any]:
    """What the checkpoint of the last step holds, by file: optimizer, generators, counters."""
    last = folder / "checkpoints" / "latest"
    files = [path for path in last.rglob("*") if path.is_file()]
    # The card tells the run's folder, and the manifest the hashes of the bytes.
    return {path.name: _contents(path) for path in files if path.name not in ("README.md", "manifest.json")}


def _contents(path: Path) -> Any:
    """Equal where what was saved is equal: how Python writes it depends on what was loaded before."""
    if path.suffix != ".pt":
        return path.read_bytes()
    with zipfile.ZipFile(path) as file:
        tensors = [name for name in file.namelist() if "/data/" in name]
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in tensors}


def drawn(seed: object, kinds: list[tuple[str, int | str]]) -> list[Fault]:
    """Faults of these (kind, victim), each at a moment that the seed draws."""
    generator = random.Random(str(seed))
    # The first falls behind a checkpoint, so that the run does not simply begin anew.
    return [
        Fault(kind, victim, generator.randint(*((7, 10) if number == 0 else (3, 8))), generator.random())
        for number, (kind, victim) in enumerate(kinds)
    ]


@pytest.fixture(scope="session")
def fault_seed(pytestconfig):
    """What all moments of this session are drawn from."""
    return pytestconfig.getoption("fault_seed")


@pytest.fixture
def draw_faults(fault_seed):
    """draw_faults(name, [(kind, victim)]) -> Faults, at moments that the session's seed draws for that name."""
    print(f"fault seed: {fault_seed}")  # shown if the test fails
    return lambda name, kinds: drawn(f"{fault_seed} {name}", kinds)
