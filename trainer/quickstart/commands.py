"""Running `longmix` commands as a user would, each shown before it runs."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from longmix.data_prep.errors import printable

# How long torch's threads spin for one another before they sleep. With the default, a machine that has other work
# trains many times slower: a thread that waits for its turn keeps the others spinning.
_SPINS = "1000"


class CommandFailed(Exception):
    """A command ended with this exit code; it has said why itself."""

    def __init__(self, code: int):
        super().__init__(f"exit code {code}")
        self.code = code


def longmix(*arguments: str | Path) -> None:
    """Run `longmix ARGUMENTS` with its output on this console. Raises CommandFailed unless it returns 0."""
    words = [str(argument) for argument in arguments]
    print(printable(f"$ {shlex.join(['longmix', *words])}"), flush=True)
    code = _run(words, output=None)[0]
    if code != 0:
        raise CommandFailed(code)


def longmix_quietly(*arguments: str | Path) -> None:
    """Run `longmix ARGUMENTS` without a word, unless it fails: then with everything it wrote."""
    code, text = _run([str(argument) for argument in arguments], output=subprocess.PIPE)
    if code != 0:
        print(text, end="", file=sys.stderr)
        raise CommandFailed(code)


def _run(words: list[str], output: int | None) -> tuple[int, str]:
    """(exit code, output). A signal is left to the command, which saves its work and tells with its exit code."""
    process = None

    def forward(number: int, frame: object) -> None:
        if process is not None:
            process.send_signal(number)

    # Ctrl-C reaches the command too, through the terminal: forwarding it would ask twice.
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None),
        **{number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGUSR1)},
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "longmix.trainer", *words],
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            text=True,
            env={"GOMP_SPINCOUNT": _SPINS, **os.environ},
        )
        text = process.communicate()[0]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return process.returncode, text or ""
