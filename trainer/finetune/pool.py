"""Runs side by side: one worker process for each device, each with one run at a time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from longmix.data_prep.errors import UserError

from ..exit_codes import INTERRUPTED
from ..stopping import STOP_SIGNALS
from .jobs import Job

POLL_SECONDS = 0.2


def devices() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them; empty without one."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    if visible and count:
        return [name.strip() for name in visible.split(",")][:count]
    return [str(index) for index in range(count)]


def run_side_by_side(jobs: Sequence[Job], workers: int, gpus: Sequence[str], finished: Callable[[Job], None]) -> int:
    """Run `jobs` on `workers` processes, worker k on `gpus[k % len(gpus)]`; `finished` is called after each run.

    Returns 0, or 75 after a signal, which is passed on so that every run saves itself. When a run fails, the others are
    stopped in the same way.

    Raises UserError (the run failed by a mistake of the user) or RuntimeError, with the last line of the run's log.
    """
    waiting, running, stop = list(jobs), {}, []
    with _signals(stop):
        failure: tuple[Job, int] | None = None
        sent = False
        while waiting or running:
            stopping = bool(stop) or failure is not None
            free = [slot for slot in range(workers) if slot not in running]
            while waiting and free and not stopping:
                slot, job = free.pop(0), waiting.pop(0)
                running[slot] = job, _start(job, gpus[slot % len(gpus)] if gpus else "", workers)
            if stopping and not sent:
                sent = True
                for _, process in running.values():
                    process.send_signal(signal.SIGTERM)
            if stopping and not running:
                break
            for slot, (job, process) in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                process.stdin.close()
                del running[slot]
                if code == 0:
                    finished(job)
                elif not stopping and code != INTERRUPTED:
                    failure = failure or (job, code)
                elif code == INTERRUPTED and not stop:
                    stop.append(signal.SIGTERM)
            time.sleep(POLL_SECONDS)
    if failure is not None:
        job, code = failure
        log = log_path(job)
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("longmix: error: ") if lines else f"exit code {code}"
        raise (UserError if code == 2 else RuntimeError)(f"{job.name}: {last} (log: {log})")
    return INTERRUPTED if stop else 0


def log_path(job: Job) -> Path:
    """Where the console output of a run goes when it has a worker of its own: beside its folder."""
    folder = Path(job.folder)
    return folder.with_name(f"{folder.name}.log")


def _start(job: Job, gpu: str, workers: int) -> subprocess.Popen:
    log_path(job).parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment["CUDA_VISIBLE_DEVICES"] = gpu
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    with open(log_path(job), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "longmix.trainer.finetune.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on once
        )
    # The pipe stays open as long as the parent lives: its end tells the worker to save and leave.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        process.stdin.flush()
    return process


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
