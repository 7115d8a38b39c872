"""`python -m longmix.trainer` is the command `longmix`: `cli.main`, and the end of the process."""

from typing import NoReturn

from .processes import signals


def run() -> NoReturn:
    """Run the command, and end the process with its exit code."""
    # Before all that takes long to import.
    signals.listen()
    from .cli import main
    from .processes.ending import leave

    leave(main)


if __name__ == "__main__":
    run()
