"""`python -m longmix.trainer.finetune.worker`: one run of a pool, described by a line of JSON on stdin, with the
trainer's exit codes.
"""

import json
import os
import signal
import sys
import threading

from longmix.data_prep.errors import UserError

from ..processes.signals import StopRequests
from ..settings.exit_codes import USER_MISTAKE
from .jobs import Job, quiet, run_job


def main() -> int:
    job = Job.from_settings(json.loads(sys.stdin.readline()))
    with StopRequests() as requests:
        threading.Thread(target=_leave_with_parent, daemon=True).start()
        quiet()
        try:
            return run_job(job, requests)
        except UserError as error:
            print(f"longmix: error: {error}", file=sys.stderr)
            return USER_MISTAKE


def _leave_with_parent() -> None:
    """Ask the run to save and stop when the parent's end of the pipe closes."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
