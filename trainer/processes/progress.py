"""The progress of a rank: counted by its main thread, read by its watchdog."""

from dataclasses import dataclass

# Loading, converting, and compiling for the first step take their time.
START_MINUTES = 30.0


@dataclass
class Progress:
    """The progress of this rank's main thread. Only it writes here; the watchdog's thread reads.

    Attributes:
        exchanges: with other ranks that it has come to, the same ones on every rank.
        step: the step that is being made, or was made last.
        steps_begun: by this process.
        phase: what it does, for people.
    """

    exchanges: int = 0
    step: int = 0
    steps_begun: int = 0
    phase: str = "start"

    def begin_step(self, step: int) -> None:
        self.step, self.phase = step, "training"
        self.steps_begun += 1
