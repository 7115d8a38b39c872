"""The reasons to stop a run or to save: signals, files, limits. Each rank tells what it knows; all decide together."""

import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoints.saving import Saver
from ..processes.signals import StopRequests
from ..processes.world import World
from ..settings.sections import RunSection

logger = logging.getLogger(__name__)


class StopConditions:
    """The wishes of this rank at a step, as numbers that are added up over the ranks.

    Files and the clock are the first rank's to watch: the others may see them later.

    Args:
        folder: the run folder, where a person may put a file STOP or SAVE.
        section: `run` of the run file.
        last_step: `optim.max_steps`; to stop there is to finish.
        requests: the signals of this process.
        is_first: whether this is rank 0.
    """

    FILES = ("STOP", "SAVE")

    def __init__(self, folder: Path, section: RunSection, last_step: int, requests: StopRequests, is_first: bool):
        self._requests, self._is_first = requests, is_first
        self._stop_file, self._save_file = (folder / name for name in self.FILES)
        self._stop_at = math.inf if section.stop_at_step in (None, last_step) else section.stop_at_step
        self._deadline = None if section.max_hours is None else time.monotonic() + 3600 * section.max_hours

    def asked(self, step: int = 0) -> torch.Tensor:
        """(4 reasons + 1,) float64, 1 where this rank asks: signal, STOP, run.max_hours, run.stop_at_step; SAVE.

        `step`: steps done; 0 leaves run.stop_at_step out.
        """
        first = self._is_first
        return torch.tensor(
            [
                self._requests.requested is not None,
                first and os.path.isfile(self._stop_file),  # False, too, while the file system is away
                first and self._deadline is not None and time.monotonic() >= self._deadline,
                step >= self._stop_at,
                first and os.path.isfile(self._save_file),
            ],
            dtype=torch.float64,
        )

    def obeyed(self, decision: "Decision") -> None:
        """Remove the files that a decision has followed: the next start must not meet them."""
        if self._is_first:
            for file, followed in ((self._stop_file, decision.stops), (self._save_file, decision.saves)):
                if followed:
                    try:
                        file.unlink(missing_ok=True)
                    except OSError as error:
                        logger.warning("%s cannot be removed (%s) and will be obeyed again", file, error.strerror)


@dataclass(frozen=True)
class Decision:
    """The decision of all ranks: why to stop, if they do, and whether to save."""

    reason: str | None = None
    saves: bool = False

    AT_STEP = "run.stop_at_step"
    REASONS = ("a signal", "the file STOP", "run.max_hours", AT_STEP)

    @classmethod
    def of(cls, asked: list[float]) -> "Decision":
        """The decision, from the sum over the ranks of what each has asked for."""
        *stop, save = asked
        wanted = (reason for reason, count in zip(cls.REASONS, stop, strict=True) if count > 0)
        return cls(next(wanted, None), save > 0)

    @property
    def stops(self) -> bool:
        return self.reason is not None

    @property
    def remedy(self) -> str:
        """The command by which the run goes on, in words."""
        with_another = f", with another {self.AT_STEP} or null," if self.reason == self.AT_STEP else ""
        return f"the same command{with_another}"


class Consensus:
    """Asks all ranks what they want, and with it how far they are with a checkpoint: one exchange for both."""

    def __init__(self, conditions: StopConditions, saver: Saver, world: World):
        self._conditions, self._saver, self._world = conditions, saver, world

    def ask(self, step: int = 0) -> Decision:
        """Decide with all ranks after `step` steps; 0: whatever the step. Every rank must call it."""
        return self.decide(self._world.sum(self.asked(step)).tolist())

    def asked(self, step: int) -> torch.Tensor:
        """The wishes of this rank, to be summed over the ranks and handed to `decide`."""
        return torch.cat([self._conditions.asked(step), self._saver.is_over()])

    def decide(self, asked: list[float]) -> Decision:
        """The decision, from the sum of `asked`; a checkpoint in progress moves on where all ranks are ready."""
        *asked, over = asked
        self._saver.poll(over)
        return Decision.of(asked)
