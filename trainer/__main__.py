"""`python -m longmix.trainer` is the command `longmix`: `cli.main`, and the end of the process."""

import atexit
import contextlib
import os
import sys
import traceback
from typing import NoReturn

from .cli import main
from .settings.exit_codes import OURS


def run() -> NoReturn:
    """Run the command and leave without the interpreter's own end, which torch's threads do not always survive.

    A thread of gloo may be about to give back the tensor of the last exchange, for which it needs the interpreter: once
    that is ending, the thread is made to leave through code that cannot be left, and a finished run dies by SIGABRT
    ("terminate called without an active exception"; seen in 4 of 120 runs on busy cores).
    """
    try:
        code = main()
    except SystemExit as end:
        # argparse: 0 after --help, 2 after a mistake.
        code = end.code
    except Exception:
        traceback.print_exc()
        code = OURS
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    run()
