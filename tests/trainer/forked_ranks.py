"""Groups of ranks one after the other, forked from one process that has imported everything: `python forked_ranks.py
PLAN.json`. PLAN.json is a list of {"ranks": 2, "jobs": as many_runs.py takes them}; its reports follow each other."""

import json
import os
import socket
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent))

import deepspeed.checkpoint.ds_to_universal  # noqa: F401
import many_runs
import transformers

import longmix.modeling  # noqa: F401

transformers.AutoModelForMaskedLM  # noqa: B018 - transformers imports it now


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_group(ranks, jobs):
    """Whether all ranks ended well, when all have."""
    port, children = free_port(), []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
            try:
                many_runs.run_all(jobs)
            finally:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(0 if all(run_group(group["ranks"], group["jobs"]) for group in plan) else 1)
