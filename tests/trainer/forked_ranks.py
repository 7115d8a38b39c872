"""Groups of ranks, forked from one process that has imported everything.

`python forked_ranks.py` reads a group from each line of its input, {"ranks": 2, "port": a free one, "jobs": as
run_jobs.py takes them}, and writes the reports of its jobs and then DONE or FAILED.
"""

import gc
import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.checkpoint.ds_to_universal
import deepspeed.module_inject.auto_ep_layer
import deepspeed.ops.op_builder.all_ops
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - every engine imports it, and it torch's compiler
import pandas  # noqa: F401 - the first shard that is read imports it
import run_jobs
import transformers

import longmix.modeling  # noqa: F401

transformers.AutoModelForMaskedLM  # noqa: B018 - transformers imports it now


def run_group(ranks, port, jobs):
    """Whether all ranks ended well, when all have."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
            try:
                run_jobs.run_all(jobs)
            finally:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


if __name__ == "__main__":
    # A collection in a child would write to, and so copy, every page of what has been imported.
    gc.freeze()
    for line in sys.stdin:
        print("DONE" if run_group(**json.loads(line)) else "FAILED", flush=True)
