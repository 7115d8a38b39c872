"""Two ranks under ZeRO 2 whose disk refuses a checkpoint: they agree on it, go on, and save again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("refused_runs.py")
MOUNT = "mount -t tmpfs -o size=3m tmpfs"


def can_mount(folder):
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", f"{MOUNT} {folder}"], capture_output=True)
    return tried.returncode == 0


@pytest.fixture(scope="module")
def reports(start_for_module, run_values, tmp_path_factory):
    """({case: report}, what was said); without the cases "full" where nothing can be mounted."""
    folder = tmp_path_factory.mktemp("refused")
    mounted = folder / "mounted"
    mounted.mkdir()
    is_mounted = can_mount(mounted)
    cases = [("one rank", False), ("one rank", True), *([("full", False), ("full", True)] if is_mounted else [])]
    jobs = []
    for kind, asynchronous in cases:
        run = (mounted if kind == "full" else folder) / f"{kind.replace(' ', '-')}-{asynchronous}"
        changes = {"deepspeed": "zero2", "optim.max_steps": 8, "data.eval": None, "checkpoint.keep": 9}
        changes["checkpoint.asynchronous"] = asynchronous
        jobs.append({"values": run_values(run, **changes), "refusal": "full" if kind == "full" else 1})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    if is_mounted:
        command = f'{MOUNT} {mounted} && exec "$0" "$@"'
        program = "import os, sys; os.execvp('unshare', ['unshare', '--mount', 'sh', '-c', *sys.argv[1:]])"
        started = start_for_module("-c", program, command, sys.executable, SCRIPT, folder / "jobs.json", mounted)
    else:
        started = start_for_module(SCRIPT, folder / "jobs.json", "-")
    code, output = started.wait(200)
    assert code == 0, output
    found = [json.loads(line.removeprefix("REPORT ")) for line in output.splitlines() if line.startswith("REPORT ")]
    return dict(zip(cases, found, strict=True)), output


def check(reports, kind, asynchronous, reason):
    found, output = reports
    report = found[kind, asynchronous]
    assert report["code"] == 0 and report["steps"] == [2, 6, 8] and report["defects"] == [None] * 3
    assert report["hidden"] == [] and report["curve"] == found["one rank", False]["curve"]
    assert len(report["curve"]) == 8
    assert "the checkpoint of step 4 could not be written" in output and reason in output


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.full
def test_what_one_rank_cannot_write_all_go_on_without(reports, asynchronous):
    check(reports, "one rank", asynchronous, "Disk quota exceeded (rank 1); that of step 2 stays")


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.full
def test_a_file_system_that_fills_up_and_is_cleared(reports, require_or_skip, asynchronous):
    if ("full", asynchronous) not in reports[0]:
        require_or_skip("mount", "this system mounts nothing in a private mount namespace")
    check(reports, "full", asynchronous, "No space left on device")
