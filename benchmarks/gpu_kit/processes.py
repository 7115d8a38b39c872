"""Measurements in processes of their own: one that crashes, hangs or runs out of memory costs its own row alone.

The processes are forked from a server that has imported what takes long and has not touched the GPU, so that each
begins within a fraction of a second; where a fork cannot use the GPU, they begin from nothing.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from commands import end_with_parent
from gpu_kit.records import ABSENT, DONE, FAILED, Measurement
from gpu_kit.setting import Setting

from longmix.data_prep.errors import printable
from longmix.data_prep.files import write_json

# What the server imports; none of it may touch the GPU.
PRELOADED = ["gpu_kit.processes", "gpu_kit.proofs", "gpu_kit.speeds"]
# A process that its parent could not end does so itself, so long after its time.
GRACE = 10
_LONGEST_REASON = 300


class NotHereError(Exception):
    """Something that is measured where it exists does not exist here; says what."""


@dataclass(frozen=True)
class Outcome:
    """The end of a measurement.

    Attributes:
        status: done | failed | absent, or None where it was cut off and says nothing.
        answer: figures, or the reason.
    """

    status: str | None
    answer: dict | str
    seconds: float


class Workers:
    """Starts processes, waits for them, and ends them.

    Args:
        method: forkserver | spawn, of multiprocessing.
    """

    def __init__(self, setting: Setting, method: str):
        self.setting = setting
        self.context = multiprocessing.get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload(PRELOADED)
        self.folder = setting.work / "logs"
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        measurements: list[Measurement],
        together: int,
        deadline: float,
        told: Callable[[Measurement, Outcome], None],
        begun: Callable[[Measurement], None] = lambda measurement: None,
    ) -> None:
        """Make measurements in order, up to `together` at a time, until time.monotonic() is `deadline`.

        Those in progress then are ended and count as cut off; none begins later.
        """
        waiting, running = list(measurements), []
        try:
            while running or (waiting and time.monotonic() < deadline):
                while waiting and len(running) < together and time.monotonic() < deadline:
                    begun(waiting[0])
                    running.append(_Running(self, waiting.pop(0), deadline))
                connection.wait([one.process.sentinel for one in running], timeout=0.2)
                for one in list(running):
                    outcome = one.outcome()
                    if outcome is not None:
                        running.remove(one)
                        told(one.measurement, outcome)
        finally:
            for one in running:
                one.end()


class _Running:
    """A measurement in progress."""

    def __init__(self, workers: Workers, measurement: Measurement, deadline: float):
        self.measurement = measurement
        name = measurement.key.replace("/", ".")
        self.log, self.result = workers.folder / f"{name}.log", workers.folder / f"{name}.json"
        self.result.unlink(missing_ok=True)
        self.log.write_bytes(b"")
        self.began = time.monotonic()
        self.limit = min(self.began + measurement.seconds, deadline)
        self.is_cut = deadline < self.began + measurement.seconds
        self.process = workers.context.Process(
            target=work, args=(measurement, workers.setting, self.result, self.log, self.limit - self.began)
        )
        self.process.start()

    def outcome(self) -> Outcome | None:
        """What came out; None: still in progress."""
        seconds = time.monotonic() - self.began
        if self.process.is_alive():
            if time.monotonic() < self.limit:
                return None
            self.end()
            if self.is_cut:
                return Outcome(None, "cut off: the time of the stage is over", seconds)
            return Outcome(FAILED, self._reason(f"no end within {self.measurement.seconds:.0f} s"), seconds)
        self.end()  # what it has started
        if self.result.is_file():
            found = json.loads(self.result.read_text(encoding="utf-8"))
            return Outcome(found["status"], found["answer"], seconds)
        code = self.process.exitcode
        told = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        return Outcome(FAILED, self._reason(told), seconds)

    def _reason(self, told: str) -> str:
        """`told`, and the last line of the log, which says how far it came."""
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return one_line(f"{told}; last word: {last}" if last else told)

    def end(self) -> None:
        """End the process and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()  # it leads no group yet
        self.process.join(GRACE)


def work(measurement: Measurement, setting: Setting, result: Path, log: Path, seconds: float) -> None:
    """The process of one measurement: its answer goes to `result`, what it says to `log`."""
    os.setsid()
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds) + GRACE)
    with open(log, "ab", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    try:
        module, _, name = measurement.job.partition(":")
        status, answer = DONE, getattr(importlib.import_module(module), name)(setting, **measurement.arguments)
    except NotHereError as error:
        status, answer = ABSENT, one_line(str(error))
    except BaseException as error:
        traceback.print_exc()
        status, answer = FAILED, one_line(f"{type(error).__name__}: {error}")
    write_json(result, {"status": status, "answer": answer})
    sys.stdout.flush()
    sys.stderr.flush()
    # A GPU's library may hang or abort while an interpreter ends after an error.
    os._exit(0)


def one_line(text: str) -> str:
    """A reason for people: one line, not too long."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
