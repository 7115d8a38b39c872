"""Commands whose disk is full: `python full_disks.py JOBS.json FOLDER`, in a mount namespace of its own.

JOBS.json is a list of {"name", "size", "arguments", "again"}: the command is given with a new file system of `size`
mounted on FOLDER, and with "again" once more when there is room. One line of JSON tells of each: {"name", "ends":
[[exit code, standard error], ...]}. Each command is forked from this process, which has imported what takes long.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import deepspeed  # noqa: F401 - what takes long, before the forks
import torch
import transformers  # noqa: F401

from longmix.trainer import cli
from longmix.trainer.finetune import session  # noqa: F401
from longmix.trainer.processes import ending
from longmix.trainer.quickstart.command import main as quickstart
from longmix.trainer.run import loop  # noqa: F401


def end_of(arguments):
    """How a command ends, and what it writes to standard error."""
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if not child:
            torch.set_num_threads(1)
            os.dup2(told.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            command, given = (quickstart, arguments[1:]) if arguments[0] == "quickstart" else (cli.main, arguments)
            ending.leave(lambda: command(given))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.seek(0)
        return [code, told.read().decode()]


def main():
    jobs, folder = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    for job in jobs:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={job['size']}", "tmpfs", folder], check=True)
        ends = [end_of(job["arguments"])]
        if job["again"]:
            subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
            ends.append(end_of(job["arguments"]))
        subprocess.run(["umount", folder], check=True)
        print("REPORT " + json.dumps({"name": job["name"], "ends": ends}), flush=True)


if __name__ == "__main__":
    main()
