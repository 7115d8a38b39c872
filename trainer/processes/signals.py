"""Requests to stop: signals are noted, and acted on by all ranks together at the end of a step.

Before a command can do that, and in one that has nothing to save, a signal ends the process: always with code 75.
"""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from ..settings.exit_codes import INTERRUPTED

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

_AGAIN_SECONDS = 0.01

_is_interrupted = False


# A process from its first moment on.


def listen() -> None:
    """The first act of a process, before it imports anything that takes long: a signal ends it with code 75."""
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)


def interrupt() -> None:
    """From here on a signal raises KeyboardInterrupt: the command tidies up. Those that save their work use more."""
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    sys.unraisablehook = _interrupt_again


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _is_interrupted
    _is_interrupted = True
    raise KeyboardInterrupt


def _interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:
    """A signal that falls into a destructor would be told with a traceback, and passed over."""
    if ignored.exc_type is KeyboardInterrupt:
        threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def is_interrupted() -> bool:
    """Whether a signal has raised KeyboardInterrupt, whatever a library that it fell into has made of that."""
    return _is_interrupted


def _leave(number: int, frame: FrameType | None = None) -> NoReturn:
    """End this process as one that has nothing to save."""
    if os.environ.get("RANK", "0") == "0":
        text = f"longmix: stopped by {signal.Signals(number).name}; there was nothing to save"
        # To the descriptor: what the signal has interrupted may be printing.
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())
    os._exit(INTERRUPTED)


class StopRequests:
    """Context in which SIGTERM, SIGUSR1 and SIGINT set `requested`; a second SIGINT interrupts at once.

    Until `has_begun` is set there is nothing to save: the process leaves at once with code 75. A thread sees to that,
    for the main thread may wait for other ranks inside a call that runs no Python, and so no signal handler.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.has_begun = False
        self._is_interrupted = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequests":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous_descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="longmix-signals", daemon=True).start()
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        # The thread reads the end of the pipe and closes its side.
        os.close(self._writer)

    def _watch(self) -> None:
        while received := os.read(self._reader, 1):
            if received[0] in STOP_SIGNALS and not self.has_begun:
                _leave(received[0])
        os.close(self._reader)

    def leave(self) -> NoReturn:
        """End this process, which was asked to stop, as one that has nothing to save."""
        _leave(signal.Signals[self.requested])

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._is_interrupted:
                raise KeyboardInterrupt
            self._is_interrupted = True
        self.requested = signal.Signals(number).name
