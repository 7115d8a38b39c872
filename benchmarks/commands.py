"""Commands of longmix, run for their figures."""

import json
import os
import subprocess
import sys
from pathlib import Path


def longmix(words: list[str], log: Path, check: bool = True, threads: int = 1, **environment: str) -> int:
    """Run a command of longmix, its output to the end of `log`; returns its exit code.

    Args:
        words: verb and arguments.
        check: end this process too where the command fails.
        threads: that it computes with.
        environment: variables that it gets beside this process's.
    """
    with open(log, "ab") as stream:
        process = subprocess.run(
            [sys.executable, "-m", "longmix.trainer", *words],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **environment},
        )
    if check and process.returncode != 0:
        told = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise SystemExit(f"longmix {' '.join(words)} ended with {process.returncode}: {told} (log: {log})")
    return process.returncode


def records(run: Path, kind: str) -> list[dict]:
    """The records of a run, of one kind: train or eval."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
