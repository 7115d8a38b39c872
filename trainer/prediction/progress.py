"""How far a prediction or an evaluation is: a line on the console every ten seconds, however long a part takes."""

import time
from collections.abc import Callable

from ..settings.mistakes import say
from ..tables.figures import duration

EVERY_SECONDS = 10.0


class Progress:
    """Counts what is answered, and tells it.

    Args:
        total: how many there are to answer; None: that is not known before the end.
        unit: what an answer is given to, one of them.
        verb: of the command line, which tells it.
    """

    def __init__(
        self, total: int | None, unit: str, verb: str = "predict", clock: Callable[[], float] = time.monotonic
    ):
        self._total, self._unit, self._verb, self._clock = total, unit, verb, clock
        self._before = self._answered = 0
        self._began = self._told = clock()

    def skip(self, number: int) -> None:
        """So many more were answered before by an earlier command."""
        self._before += number
        if not self._answered:
            self._began = self._clock()

    def note(self, number: int) -> None:
        """So many more are answered."""
        if self._before and not self._answered:
            say(f"longmix {self._verb}: {self._of_total(self._before)} were answered before")
        self._answered += number
        now = self._clock()
        if now - self._told < EVERY_SECONDS:
            return
        self._told, done, rate = now, self._before + self._answered, self._answered / max(now - self._began, 1e-9)
        left = "" if self._total is None else f", left {duration((self._total - done) / rate)}"
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        say(f"longmix {self._verb}: {self._of_total(done)}, {speed} {self._unit}s/s{left}")

    def _of_total(self, number: int) -> str:
        if self._total is None:
            return counted(number, self._unit)
        return f"{number:,} of {counted(self._total, self._unit)}"


def nobody(number: int) -> None:
    """Who listens where nobody does."""


def counted(number: int, unit: str) -> str:
    """`1 row`, `10,000 rows`."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
