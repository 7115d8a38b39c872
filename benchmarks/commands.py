"""Commands of longmix, run for their figures."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from longmix.trainer.settings.exit_codes import INTERRUPTED

PARENT_DEATH_SIGNAL = 1  # of Linux's prctl


def longmix(words: list[str], log: Path, check: bool = True, threads: int = 1, **environment: str) -> int:
    """Run a command of longmix, its output to the end of `log`; returns its exit code.

    Args:
        words: verb and arguments.
        check: end this process too where the command fails.
        threads: that it computes with.
        environment: variables that it gets beside this process's.
    """
    code, _ = timed_longmix(words, log, threads, **environment)
    if check and code != 0:
        raise SystemExit(f"longmix {' '.join(words)} ended with {code}: {last_line(log)} (log: {log})")
    return code


def timed_longmix(words: list[str], log: Path, threads: int = 1, **environment: str) -> tuple[int, dict[str, float]]:
    """As `longmix`; returns the exit code, and `seconds`, `cpu_seconds` and `peak_bytes` that it took.

    The peak is that of the largest process among the command's.

    The command ends with this process, a kill of this one included: begun again, nothing else writes to its folder.
    """
    began = time.monotonic()
    with open(log, "ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "longmix.trainer", *words],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **environment},
            preexec_fn=end_with_parent,
        )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    seconds, cpu_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return process.returncode, {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": usage.ru_maxrss * 1024}


def watched_longmix(
    words: list[str],
    log: Path,
    texts: tuple[str, ...],
    threads: int = 1,
    note: Callable[[str], None] = lambda text: None,
    **environment: str,
) -> tuple[dict[str, float], dict[str, float]]:
    """As `longmix`, for a run that may also end at `run.stop_at_step`.

    Args:
        texts: that the command will tell.
        note: called with each of them when it has been told.

    Returns:
        What `timed_longmix` says that it took, and the seconds from its start until each text was told.
    """
    moments: dict[str, float] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(timed_longmix, words, log, threads, **environment)
        while not running.done():
            time.sleep(0.05)
            told = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            for text in texts:
                if text in told and text not in moments:
                    moments[text] = time.monotonic() - began
                    note(text)
    code, took = running.result()
    if code not in (0, INTERRUPTED):
        raise SystemExit(f"longmix {' '.join(words)} ended with {code}: {last_line(log)} (log: {log})")
    return took, moments


def one_card() -> dict[str, str]:
    """Variables with which a command has one GPU of those that this process has: else it starts a rank for each."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}


def last_line(log: Path) -> str:
    """The last line of a command's output, which says how it ended."""
    return log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]


def end_with_parent() -> None:
    """Let the system kill this process once the one that has started it is gone, a kill of that one included."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def records(run: Path, kind: str) -> list[dict]:
    """The records of a run, of one kind: train or eval."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
