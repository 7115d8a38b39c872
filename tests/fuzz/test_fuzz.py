"""Hostile and broken input of every kind: each command ends with a right result or one line, and harms nothing.

Continuous integration runs a few cases, always the same. `./test -m fuzz --fuzz-cases 2000 --fuzz-seed 5` runs others,
a tenth of them as real commands; with `--fuzz-record FILE` it goes on where it was stopped.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import plan
from .all_kinds import KINDS
from .running import ROOT

CASES, REAL_CASES = 117, 3


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """Those of all cases; made in a process of its own, which forks."""
    count, record = request.config.getoption("fuzz_cases"), request.config.getoption("fuzz_record")
    record = Path(record or tmp_path_factory.mktemp("fuzz") / "verdicts.jsonl").absolute()
    sizes = ["--cases", str(count)] if count else ["--cases", str(CASES), "--real-cases", str(REAL_CASES)]
    seed = ["--seed", str(request.config.getoption("fuzz_seed"))]
    jobs = ["--jobs", str(os.cpu_count() if count else 1), "--record", str(record)]
    command = [sys.executable, "-m", "tests.fuzz", *sizes, *seed, *jobs]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode in (0, 1) and "CPU seconds" in process.stdout, process.stdout + process.stderr
    return plan.read(record), process.stdout


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_every_end_is_a_right_result_or_one_line(verdicts, kind, record_property):
    found = [verdict for verdict in verdicts[0] if verdict.case.startswith(f"{kind}:")]
    failed = [verdict.line() for verdict in found if verdict.failure]
    if kind == list(KINDS)[-1]:
        record_property("summary", verdicts[1])
    assert found and not failed, "\npython -m tests.fuzz ".join(["", *failed])
