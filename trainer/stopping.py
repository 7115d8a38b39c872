"""Requests to stop: signals are noted, and acted on by all ranks together at the end of a step."""

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequests:
    """Context in which SIGTERM, SIGUSR1 and SIGINT set `requested`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequests":
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested is not None:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
