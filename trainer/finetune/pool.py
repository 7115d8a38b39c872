"""Fine-tuning runs side by side: one worker process for each device, each with one run at a time."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from longmix.data_prep.errors import UserError

from ..runs import pool
from ..settings.exit_codes import INTERRUPTED, OURS, USER_MISTAKE
from .jobs import Job


def run_side_by_side(jobs: Sequence[Job], workers: int, gpus: Sequence[str], finished: Callable[[Job], None]) -> int:
    """Run `jobs` on `workers` processes, worker k on `gpus[k % len(gpus)]`; `finished` is called after each run.

    Returns 0, or 75 after a signal, which is passed on so that every run saves itself. When a run fails, the others are
    stopped in the same way; 1, and a line that says so, when it was killed.

    Raises UserError (the run failed by a mistake of the user) or RuntimeError, with the last line of the run's log.
    """
    failures: list[tuple[Job, int]] = []

    def ended(job: Job, code: int, stopping: bool) -> bool:
        if code == 0:
            finished(job)
        elif code != INTERRUPTED and not stopping:
            failures.append((job, code))
        return code == 0

    is_complete = pool.run_side_by_side(
        jobs, workers, lambda job, worker: _start(job, pool.environment(gpus, worker, workers)), ended
    )
    if failures:
        job, code = failures[0]
        log = pool.log_path(job.folder)
        if code < 0:
            # The log knows nothing of it, and nothing of ours has failed.
            text = f"{job.name} was killed by {signal.Signals(-code).name}; the same command goes on (log: {log})"
            print(f"longmix: {text}", file=sys.stderr, flush=True)
            return OURS
        last = pool.last_line(log) or f"exit code {code}"
        raise (UserError if code == USER_MISTAKE else RuntimeError)(f"{job.name}: {last} (log: {log})")
    return 0 if is_complete else INTERRUPTED


def _start(job: Job, environment: dict[str, str]) -> subprocess.Popen:
    path = pool.log_path(job.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as log:
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
