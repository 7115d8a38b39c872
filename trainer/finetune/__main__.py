"""`python -m longmix.trainer.finetune`: one of the runs side by side, with the trainer's exit codes.

Its job comes through stdin, as JSON, from the command that has started this process.
"""

import signal
import sys

from longmix.data_prep.errors import UserError

from ..processes.launch import leave_with_launcher
from ..processes.signals import StopRequests
from ..settings.exit_codes import USER_MISTAKE


def main() -> int:
    with StopRequests() as requests:
        # On SIGTERM a run saves itself.
        leave_with_launcher(signal.SIGTERM)
        # What takes long to import is imported once signals are noted.
        from pydantic import TypeAdapter

        from .jobs import Job, quiet, run_job

        quiet()
        try:
            return run_job(TypeAdapter(Job).validate_json(sys.stdin.buffer.read()), requests)
        except UserError as error:
            print(f"longmix: error: {error}", file=sys.stderr)
            return USER_MISTAKE


if __name__ == "__main__":
    sys.exit(main())
