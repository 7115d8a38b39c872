"""Saving a run: the ranks write a checkpoint together, in the step loop or behind it, and outlive a disk that refuses.

Two sides that share nothing but a Future: `Saver`'s methods run in the step loop and may exchange with other ranks;
`_write` and `_complete` touch the disk alone, in a thread of their own behind the loop.
"""

import contextlib
import copy
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..engines.base import Engine
from ..processes.world import SharedFault, World
from ..settings.sections import CheckpointSection
from . import folders, hashed_files
from .run_log import RunLog
from .state import RunState

# write_model(folder, weights, state): the Hugging Face folder and its card.
WriteModel = Callable[[Path, dict[str, torch.Tensor], RunState], None]

# A state is large above so many bytes, of which Adam has so many for each parameter: two moments and the fp32 weights.
LARGE_STATE, STATE_BYTES = 2**30, 12
# Seconds before a checkpoint that no later one makes good is tried again.
PAUSES = (1.0, 5.0, 15.0)


@dataclass
class _Pending:
    """A checkpoint in progress: first every rank writes its files, then rank 0 completes it.

    Attributes:
        work: in progress on this rank.
        entries: of all ranks' files, once they are written.
    """

    folder: Path
    state: RunState
    in_background: bool
    work: Future
    entries: list[dict[str, Any]] | None = None


class Saver:
    """Writes the checkpoints of one run on this rank; every rank calls every method.

    A save that the disk refuses is told and forgotten: earlier checkpoints stay, the run goes on, the next one is a
    new attempt. `checkpoint.max_failures` of them in a row are allowed.

    Args:
        state: where the run stands, copied at each save; a failure takes back its choice of the best.
        parameters: of the whole model, by which `checkpoint.asynchronous: auto` decides: what is small is written in a
            moment, and needs no memory for a copy.

    Attributes:
        is_behind: whether checkpoints are written behind the step loop.
        newest: the state of the newest checkpoint that is whole, or the one that the run began with.
        written: checkpoints written.
        waits: seconds that the step loop waited for each, or for an attempt.
    """

    def __init__(
        self, run: Path, section: CheckpointSection, world: World, log: RunLog, state: RunState, parameters: int
    ):
        self._run, self._section, self._world, self._log, self._state = run, section, world, log, state
        is_large = parameters * STATE_BYTES > LARGE_STATE
        self.is_behind = is_large if section.asynchronous == "auto" else section.asynchronous
        self._pending: _Pending | None = None
        self._failures = 0
        self._noted: set[str] = set()
        self.newest = copy.deepcopy(state)
        self.written = 0
        self.waits: list[float] = []
        self._waited_before = 0.0

    def save(self, engine: Engine, write_model: WriteModel, is_last_chance: bool = False) -> None:
        """Save where the run stands; then delete the checkpoints that are no longer kept.

        Behind the loop only the copy to host memory is waited for. With `is_last_chance` the checkpoint
        is waited for and tried again a few times. Rank 0 calls `write_model`.

        Raises:
            SharedFault: the disk refuses too often; earlier checkpoints are whole.
        """
        began = time.perf_counter()
        self._world.progress.phase = "checkpoint"
        try:
            self._count(self._wait())
            in_background = self.is_behind and not is_last_chance
            reason = self._begin(engine, write_model, in_background)
            if not in_background:
                reason = reason or self._wait()
            for pause in PAUSES if is_last_chance else ():
                if reason is None:
                    break
                self._log.say(f"{reason}; it is tried again in {pause:g} s")
                time.sleep(pause)
                reason = self._begin(engine, write_model, in_background) or self._wait()
            self._count(reason)
        finally:
            self.waits.append(self._waited_before + time.perf_counter() - began)
            self._waited_before = 0.0

    def wait(self) -> None:
        """Wait for the checkpoint in progress. Raises SharedFault as `save` does."""
        began = time.perf_counter()
        try:
            self._count(self._wait())
        finally:
            self._waited_before += time.perf_counter() - began

    def is_over(self) -> torch.Tensor:
        """(1,) float64: 1 if this rank's part of the checkpoint in progress is done; to be summed over the ranks."""
        return torch.tensor([self._pending is not None and self._pending.work.done()], dtype=torch.float64)

    def poll(self, over: float) -> None:
        """Move the checkpoint in progress on if `over`, the sum of `is_over`, says that all ranks are ready."""
        if over == self._world.size:
            self._count(self._advance())

    def tidy(self) -> None:
        """Do what a kill behind the last checkpoint has left undone: nothing comes after it that would."""
        if self._world.is_first and not self.written:
            with contextlib.suppress(OSError):
                folders.remove_unfinished(self._run)
                folders.point_to(self._run, self.newest.step)
                folders.prune(self._run, self._section, self.newest)

    def told(self) -> str:
        """A line on the cost of the checkpoints."""
        waited = (
            f"; the step loop waited {statistics.median(self.waits):.3g} s for one, {max(self.waits):.3g} s at most"
            if self.waits
            else ""
        )
        return f"checkpoints written: {self.written}{waited}"

    def close(self) -> None:
        """Leave no thread behind. Among other ranks this process ends at once instead, however far the thread is."""
        if self._pending is not None and self._world.size == 1:
            self._pending.work.exception()

    # The stages of a checkpoint. Ranks exchange what became of a stage, and nothing within one: a disk that refuses on
    # one rank leaves none waiting.

    def _wait(self) -> str | None:
        """Finish the checkpoint in progress; why it failed, None if it did not."""
        reason = None
        while self._pending is not None:
            reason = self._advance()
        return reason

    def _begin(self, engine: Engine, write_model: WriteModel, in_background: bool) -> str | None:
        """Start to write; why that is impossible, None if it is not."""
        world = self._world
        folder, reason = world.from_first(self._make_folder() if world.is_first else None)
        if reason is not None:
            return self._told(self._state.step, reason)
        folder = Path(folder)
        files, weights, state = engine.collect(folder), engine.gather(), copy.deepcopy(self._state)
        if in_background:
            files, weights = hashed_files.copy_to_host((files, weights))

        def write() -> list[dict[str, Any]]:
            return _write(folder, files, (lambda: write_model(folder / "model", weights, state)), world.is_first)

        self._pending = _Pending(folder, state, in_background, _start(write, in_background))
        return None

    def _make_folder(self) -> tuple[str | None, str | None]:
        """The folder to write to; or why there is none."""
        try:
            # On the disk before the checkpoint is, which then never knows more than metrics.jsonl.
            self._log.flush()
            return str(folders.begin(self._run, self._state.step)), None
        except OSError as error:
            return None, hashed_files.reason_of_refusal(error)

    def _advance(self) -> str | None:
        """Wait for this rank's part of the stage, agree on what became of it, and start the next; why it failed."""
        world, pending = self._world, self._pending
        result, reason = _outcome(pending.work)
        if pending.entries is None:
            outcomes = world.gather((result, reason))
            refusals = [f"{why} (rank {rank})" for rank, (_, why) in enumerate(outcomes) if why is not None]
            if not refusals:
                pending.entries = [entry for found, _ in outcomes for entry in found]
                work = (lambda: _complete(self._run, self._section, pending)) if world.is_first else (lambda: None)
                pending.work = _start(work, pending.in_background)
                return None
            reason = refusals[0]
        else:
            notes, reason = world.from_first((result, reason))
        self._pending = None
        if reason is None:
            self.newest, self._failures = pending.state, 0
            self.written += 1
            # What stands in the way of one checkpoint stands in that of the next.
            for note in notes:
                if note not in self._noted:
                    self._log.say(note)
            self._noted.update(notes)
            return None
        if world.is_first:
            shutil.rmtree(pending.folder, ignore_errors=True)
        return self._told(pending.state.step, reason)

    def _told(self, step: int, reason: str) -> str:
        return f"the checkpoint of step {step} could not be written to {self._run / 'checkpoints'}: {reason}"

    def _count(self, reason: str | None) -> None:
        """Tell a failure and go on, or stop after too many."""
        if reason is None:
            return
        self._failures += 1
        self._state.forget_best_beyond(self.newest)
        allowed = self._section.max_failures
        if self._failures > allowed:
            raise SharedFault(
                f"{reason}; that was failure {self._failures} in a row, and checkpoint.max_failures is "
                f"{allowed}; that of step {self.newest.step} is whole: make room, then the same command goes on from it"
            )
        self._log.say(
            f"{reason}; that of step {self.newest.step} stays, and the run goes on to the next "
            f"(failure {self._failures} in a row of {allowed} that checkpoint.max_failures allows)"
        )


# The side of the disk. It exchanges nothing with other ranks, and so may run in a thread.


def _start(work: Callable[[], Any], in_background: bool) -> Future:
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    if in_background:
        threading.Thread(target=run, name="longmix-saving", daemon=True).start()
    else:
        run()
    return future


def _outcome(work: Future) -> tuple[Any, str | None]:
    """The result of work that is done, or why the disk refused; an error of another kind is raised."""
    try:
        return work.result(), None
    except Exception as error:
        reason = hashed_files.reason_of_refusal(error)
        if reason is None:
            raise
        return None, reason


def _write(
    folder: Path, files: dict[str, Any], write_model: Callable[[], None], is_first: bool
) -> list[dict[str, Any]]:
    """Write, flush and verify this rank's files; their entries of the manifest."""
    entries = [hashed_files.write(folder, name, value) for name, value in files.items()]
    if is_first:
        write_model()
        entries += hashed_files.entries(folder / "model", folder)
    return entries


def _complete(run: Path, section: CheckpointSection, pending: _Pending) -> list[str]:
    """Let a checkpoint exist whose files are written and verified, then delete others; lines to tell about it."""
    state = pending.state
    folders.finish(pending.folder, run, state, pending.entries)
    notes = []
    for work in (lambda: folders.point_to(run, state.step), lambda: folders.prune(run, section, state)):
        try:
            notes += work()
        except OSError as error:
            reason = hashed_files.reason_of_refusal(error)
            notes.append(f"the checkpoint of step {state.step} is whole, but {run / 'checkpoints'} refuses: {reason}")
    return notes
