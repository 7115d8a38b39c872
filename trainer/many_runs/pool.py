"""Runs side by side, each in a process of its own: places for them, signals, and where their console output goes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from longmix.data_prep.errors import refused
from longmix.data_prep.files import make_folder
from longmix.kernels.common.safe_files import open_to_append

from ..processes.launch_environment import LAUNCH_VARIABLES, LAUNCHER, THREADS, usable_cpus
from ..processes.signals import STOP_SIGNALS

POLL_SECONDS = 0.2

Job = TypeVar("Job")


def devices() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them; empty without one.

    Raises:
        UserError, MachineFault: there should be some (see `usable_gpus`).
    """
    from ..processes.world import usable_gpus

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = usable_gpus()
    if visible and count:
        return [name.strip() for name in visible.split(",")][:count]
    return [str(index) for index in range(count)]


def places(wanted: int | None, jobs: int) -> tuple[list[str], int]:
    """The GPUs, and how many of `jobs` runs go side by side: as many as `wanted`, by default one for each GPU."""
    gpus = devices()
    return gpus, min(wanted or max(1, len(gpus)), max(1, jobs))


def run_side_by_side(
    jobs: Sequence[Job],
    workers: int,
    start: Callable[[Job, int], subprocess.Popen | None],
    ended: Callable[[Job, int, bool], bool],
) -> bool:
    """Run `jobs`, at most `workers` at a time. False if a signal, or `ended`, has stopped them; a signal is passed on.

    Args:
        start: (job, worker) -> its process, None to pass the job over; a worker has one job at a time.
        ended: (job, exit code, whether the runs are being stopped) -> whether to go on. If not, no job is started any
            more, and those that run get SIGTERM, on which they save themselves.
    """
    waiting, running, received = list(jobs), {}, []
    goes_on, sent = True, False
    with _signals(received):
        while waiting or running:
            stopping = bool(received) or not goes_on
            free = [worker for worker in range(workers) if worker not in running]
            while waiting and free and not stopping:
                job = waiting.pop(0)
                process = start(job, free[0])
                if process is not None:
                    running[free.pop(0)] = job, process
            if stopping and not sent:
                sent = True
                for _, process in running.values():
                    process.send_signal(signal.SIGTERM)
            if stopping and not running:
                break
            for worker, (job, process) in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[worker]
                goes_on = ended(job, code, stopping) and goes_on
            time.sleep(POLL_SECONDS)
    return goes_on and not received


def environment(gpus: Sequence[str], worker: int, workers: int) -> dict[str, str]:
    """The environment of worker number `worker`: it sees one GPU, if there are any, and has its share of the CPUs.

    Its run is alone, whatever has launched the command.
    """
    values = {name: value for name, value in os.environ.items() if name not in LAUNCH_VARIABLES}
    values["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)] if gpus else ""
    values.setdefault(THREADS, str(max(1, usable_cpus() // workers)))
    return values


def start(arguments: Sequence[str], folder: Path, environment: dict[str, str], stdin: bytes = b"") -> subprocess.Popen:
    """Start `python -m ARGUMENTS` for the run in `folder`, with its console output in the run's log.

    Such a process calls `leave_with_launcher`: it does not outlive this one.

    Raises:
        UserError, MachineFault: the log cannot be written.
    """
    log = log_path(folder)
    make_folder(log.parent)
    try:
        appended = open_to_append(log)
    except OSError as error:
        raise refused(f"{log} cannot be written", error) from None
    with appended as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, LAUNCHER: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        )
    # One that has ended already tells why in its exit code.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(stdin)
    return process


def log_path(folder: Path) -> Path:
    """The file for the console output of a run that has a process of its own: beside its folder."""
    return folder.with_name(f"{folder.name}.log")


def last_line(log: Path, start: int = 0) -> str | None:
    """The last line that a run wrote, from byte `start` of its log on, without the command's own "longmix: error:"."""
    with open(log, "rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("longmix: error: ") if lines else None


@contextlib.contextmanager
def _signals(received: list[int]):
    """Note signals in `received` instead of dying; outside the main thread, where that is impossible, do nothing."""
    previous = {}
    with contextlib.suppress(ValueError):
        for number in STOP_SIGNALS:
            previous[number] = signal.signal(number, lambda which, _: received.append(which))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
