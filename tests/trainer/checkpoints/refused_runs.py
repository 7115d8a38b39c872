"""Runs of two ranks under ZeRO 2 whose disk refuses: `python refused_runs.py JOBS.json MOUNTED`.

Both ranks are forked from this process, which has imported what takes long. MOUNTED is a file system of a few MB, or
"-". JOBS.json is a list of {"values": run file, "refusal": "full" | rank}: the file system is filled up before the
checkpoint of step 4 and cleared after it, or that rank alone is refused in the middle of it. Rank 0 prints one line
of JSON for each.
"""

import errno
import json
import os
import socket
import sys
from pathlib import Path

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - before the fork, with torch's compiler
import pandas  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401

from longmix.trainer.checkpoints import folders, hashed_files
from longmix.trainer.processes import world as distributed
from longmix.trainer.run import loop
from longmix.trainer.run.stop_conditions import StopConditions
from longmix.trainer.settings import reading

RANKS = 2
LEFT = 40_000  # bytes: enough for a line, too little for a checkpoint
asked, write = StopConditions.asked, hashed_files.HashedFile.write


def fill(folder):
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "filler").write_bytes(bytes(max(0, free - LEFT)))


def run(job, world, mounted):
    folder = Path(job["values"]["run"]["dir"])
    is_full = job["refusal"] == "full"

    def asking(conditions, step=0):
        if is_full and world.is_first and step == 4:
            fill(mounted)
        if is_full and world.is_first and step == 6:  # asked before that step is made, when step 5 has been
            (mounted / "filler").unlink()
        return asked(conditions, step)

    def writing(file, data):
        if not is_full and world.rank == job["refusal"] and ".step-00000004" in file._file.name and file.bytes:
            with file._noting():
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write(file, data)

    StopConditions.asked, hashed_files.HashedFile.write = asking, writing
    outcome = loop.train(reading.from_dict(job["values"], "job"), world)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "code": outcome.code,
        "steps": folders.steps(folder),
        "defects": [folders.defect(folders.path_of(folder, step)) for step in folders.steps(folder)],
        "hidden": [path.name for path in (folder / "checkpoints").glob(".*")],
        "curve": [[record["step"], record["loss"], record["grad_norm"]] for record in records if "lr" in record],
    }


def main():
    jobs, mounted = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    other = os.fork()
    rank = "0" if other else "1"
    os.environ.update(shared, RANK=rank, LOCAL_RANK=rank)
    world = distributed.join()
    for job in jobs:
        report = run(job, world, mounted)
        if world.is_first:
            print("REPORT " + json.dumps(report), flush=True)
    distributed.leave(world)
    if other:
        os.waitpid(other, 0)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
