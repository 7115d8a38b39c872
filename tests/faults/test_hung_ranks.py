"""Ranks that are still there and do nothing any more, in runs of the real command."""

import json
import os
import re
import signal
from pathlib import Path

import pytest


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_named_first_and_ended_with_the_others(start, run_values, write_run_file, tmp_path, stopped):
    folder = tmp_path / "run"
    changes = {
        "deepspeed": "zero2",
        "optim.max_steps": 10_000,
        "eval.every_steps": 10_000,
        "checkpoint.every_steps": 10_000,
        "run.hang_minutes": 0.15,
    }
    run_file = write_run_file(tmp_path / "run.yaml", run_values(folder, **changes))
    command = start("-m", "longmix.trainer", "train", run_file, "--processes", 2)
    command.wait_until(lambda: heartbeat(folder, stopped).get("step", 0) > 3)
    processes = [heartbeat(folder, rank)["process"] for rank in (0, 1)]
    os.kill(processes[stopped], signal.SIGSTOP)
    code, output = command.wait()
    assert code == 1, output
    lines = (line for line in output.splitlines() if line.startswith("longmix: ") and "stacks of" not in line)
    begun, *told = lines
    assert begun.endswith("loading torch and DeepSpeed")
    assert re.match(rf"longmix: rank {stopped} on \S+ is missing: stopped, gone, or cut off", told[0]), output
    assert f"rank {stopped} on" in told[1] and told[1].endswith("does not answer")
    assert output.count("(run.hang_minutes)") == 1 and "Traceback" not in output
    assert [path.name for path in (folder / "stacks").iterdir()] == [f"rank-0000{1 - stopped}.txt"]
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def heartbeat(folder, rank):
    """What a rank has told last; an empty map before that."""
    try:
        return json.loads((folder / "heartbeats" / f"rank-{rank:05d}.json").read_text())
    except (OSError, ValueError):
        return {}
