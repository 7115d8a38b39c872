"""`python -m longmix.trainer.finetune`: one of the runs side by side, with the trainer's exit codes.

Its job comes through stdin, as JSON, from the command that has started this process.
"""

import signal
import sys
from typing import NoReturn

from ..processes import signals


def main() -> NoReturn:
    """Run the job, and end the process with its exit code."""
    # Before all that takes long to import.
    signals.listen()
    from longmix.data_prep.errors import show_printable_logs

    from ..processes.ending import exit_code, leave

    show_printable_logs()

    leave(lambda: exit_code(_run))


def _run() -> int:
    from ..processes.launch import leave_with_launcher

    with signals.StopRequests() as requests:
        # On SIGTERM a run saves itself.
        leave_with_launcher(signal.SIGTERM)
        # What takes long to import is imported once signals are noted.
        from pydantic import TypeAdapter

        from .jobs import Job, quiet, run_job

        quiet()
        return run_job(TypeAdapter(Job).validate_json(sys.stdin.buffer.read()), requests)


if __name__ == "__main__":
    main()
