"""`python -m longmix.trainer.quickstart`: what ./quickstart runs in its environment."""

import sys
from typing import NoReturn

from ..processes import signals


def run() -> NoReturn:
    """Run the command, and end the process with its exit code."""
    # Before all that takes long to import.
    signals.listen()
    from ..processes.ending import leave
    from ..settings.mistakes import say_loading

    say_loading("quickstart")
    from .command import main

    leave(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    run()
