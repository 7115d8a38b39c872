"""Watching over a run that makes no progress: every rank tells where it is, and the job ends rather than hang.

A thread of each rank writes RUN/heartbeats/rank-NNNNN.json again and again. The main thread only counts: exchanges with
other ranks, steps. A rank that has counted nothing for `run.hang_minutes` raises the alarm; then every rank that still
can writes its stacks to RUN/stacks/, one of them names the missing rank, and all leave.

No clock is compared with another machine's: each rank measures how long it has itself been quiet, and one that lives
answers the alarm. Time in which the process did not run at all (a suspended job) does not count.
"""

import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from longmix.data_prep.state_files import read_or_none
from longmix.kernels.common.safe_files import open_to_read, write_over

from ..settings import mistakes
from ..settings.exit_codes import OURS
from .flight_recorder import last_exchanges
from .progress import START_MINUTES

if TYPE_CHECKING:
    from .world import World

LONGEST_INTERVAL_SECONDS = 15.0
# Each file is written over what it held before, which needs no room on a full disk.
FILE_BYTES = 1024
# The texts of the file `alarm`, in this order.
CALM, RAISED, TOLD = "calm", "raised", "told"
# Frames of a thread that waits for other ranks: in files of these, or in these functions, which call no Python.
EXCHANGES = ("/torch/distributed/", "/deepspeed/comm/")
WAITING = ("_engine_run_backward", "LaterSum.wait")
HEARTBEATS, STACKS, ALARM = "heartbeats", "stacks", "alarm"
# The files of a run's folders for ranks, and how they begin.
_HEARTBEAT, _STACK = re.compile(r"rank-\d{5,}\.json"), re.compile(r"rank-\d{5,}\.txt")
_FIRST_WORDS = {_HEARTBEAT: ('{"rank":',), _STACK: ("longmix: stacks of",), re.compile(ALARM): (CALM, RAISED, TOLD)}
LONGEST_LIST = 16


@dataclasses.dataclass
class Heartbeat:
    """A rank's message to the others.

    Attributes:
        waits: whether it seems to wait for other ranks: in an exchange, or in a backward pass, which may hold one.
        place: where its main thread is.
        has_dumped: whether it has met the alarm and written its stacks.
    """

    rank: int
    host: str
    process: int
    exchanges: int = 0
    step: int = 0
    phase: str = "start"
    waits: bool = False
    place: str = ""
    has_dumped: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Watchdog:
    """A context of the main thread, within which a run that makes no progress is ended.

    Args:
        world: this rank, and how far it is.
        run: the run folder, used from `share` on.
        hang_minutes: without progress, from the second step of this process on; before, at least START_MINUTES.
    """

    def __init__(self, world: "World", run: Path, hang_minutes: float):
        self._world, self._progress = world, world.progress
        self._folder, self._stacks = run / HEARTBEATS, run / STACKS
        self._hang_minutes = hang_minutes
        self._interval = min(LONGEST_INTERVAL_SECONDS, 60 * hang_minutes / 20)
        self._mine = Heartbeat(world.rank, socket.gethostname(), os.getpid())
        self._is_shared = False
        self._is_over = threading.Event()

    def __enter__(self) -> "Watchdog":
        self._main = threading.get_ident()
        self._progress.steps_begun, self._progress.phase = 0, "start"
        threading.Thread(target=self._watch, name="longmix-watchdog", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        if self._is_shared:
            with contextlib.suppress(OSError):
                self._path(self._mine.rank).unlink()
            if self._world.is_first:
                _remove_heartbeats(self._folder)

    def share(self) -> None:
        """From now on tell the others; on every rank, while this run alone has the run folder."""
        if self._world.is_first:
            # The heartbeats of an earlier start, maybe of more ranks.
            _remove_heartbeats(self._folder)
            with contextlib.suppress(OSError):
                self._folder.mkdir(exist_ok=True)
            self._set_alarm(CALM)
        self._world.barrier()
        self._is_shared = True

    # The watching thread. It reads what the main thread counts, and takes no lock: the main thread may hold any.

    def _watch(self) -> None:
        last, seen, quiet = time.monotonic(), None, 0.0
        while not self._is_over.wait(self._interval):
            elapsed, last = time.monotonic() - last, time.monotonic()
            counted = self._progress.exchanges, self._progress.steps_begun
            quiet = quiet + min(elapsed, 2 * self._interval) if counted == seen else 0.0
            seen = counted
            self._beat()
            if quiet >= 60 * self._minutes() or self._alarm() != CALM:
                self._end()

    def _minutes(self) -> float:
        return self._hang_minutes if self._progress.steps_begun > 1 else max(self._hang_minutes, START_MINUTES)

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank:05d}.json"

    def _set_alarm(self, text: str) -> None:
        _overwrite(self._folder / ALARM, text)

    def _alarm(self) -> str:
        """The text of the alarm's file; network file systems show a new text of a file sooner than a new file."""
        with contextlib.suppress(OSError, ValueError):
            if self._is_shared:
                return _text(self._folder / ALARM).strip()
        return CALM

    def _beat(self) -> None:
        mine, progress = self._mine, self._progress
        mine.exchanges, mine.step, mine.phase = progress.exchanges, progress.step, progress.phase
        if self._is_shared:
            _overwrite(self._path(mine.rank), json.dumps(dataclasses.asdict(mine)))

    def _heartbeats(self) -> dict[int, Heartbeat]:
        """The last message of each other rank."""
        found = {}
        for rank in range(self._world.size) if self._is_shared else ():
            if rank != self._mine.rank:
                # Not there, or just being written.
                told = read_or_none(self._path(rank), Heartbeat)
                if told is not None:
                    found[rank] = told
        return found

    # The end. Every rank that still runs writes its stacks; the lowest of them speaks for all, so that people read one
    # reason instead of one for each rank.

    def _end(self) -> None:
        """Write the stacks of this rank, let one rank tell the reason, and end the process."""
        if self._alarm() == CALM and self._is_shared:
            self._set_alarm(RAISED)
        mine = self._mine
        mine.place, mine.waits = _whereabouts(sys._current_frames()[self._main])
        dump = f"longmix: stacks of {mine}, process {mine.process}, step {mine.step}, {mine.phase}\n" + _stacks()
        if self._is_shared:
            self._write_stacks(dump)
        mine.has_dumped = True
        known, answering = {}, {}
        deadline = time.monotonic() + max(3.0, 4 * self._interval)
        while self._is_shared and len(answering) < self._world.size - 1 and time.monotonic() < deadline:
            time.sleep(self._interval)
            self._beat()
            known |= self._heartbeats()
            answering = {rank: told for rank, told in known.items() if told.has_dumped}
        if self._is_over.is_set():
            return  # the main thread has gone on, and has finished
        if mine.rank < min(answering, default=self._world.size) or not self._is_told():
            _print("".join(f"longmix: {line}\n" for line in self._report({mine.rank: mine, **known})))
            if self._is_shared:
                self._set_alarm(TOLD)
        _print(dump)
        # Last: the recorder has a lock, which may be what hangs.
        exchanges = last_exchanges()
        if self._is_shared:
            self._write_stacks(dump + exchanges)
        _print(exchanges)
        # Whoever started the ranks ends the others soon after the first has left.
        time.sleep(min(1.0, self._interval))
        os._exit(OURS)

    def _write_stacks(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stacks.mkdir(exist_ok=True)
            path = self._stacks / f"rank-{self._mine.rank:05d}.txt"
            write_over(path, text.encode(errors="replace"), cut=True)

    def _is_told(self) -> bool:
        """Whether another rank tells the reason, waiting for it."""
        deadline = time.monotonic() + max(3.0, 2 * self._interval)
        while time.monotonic() < deadline:
            if self._alarm() == TOLD:
                return True
            time.sleep(self._interval)
        return False

    def _report(self, known: dict[int, Heartbeat]) -> list[str]:
        """Lines for people: which rank is missing, then where each one is."""
        if self._is_shared:
            missing, reason = _missing(known, self._world.size)
        else:
            missing, reason = [], f"{self._mine} of {self._world.size} does not get through its start"
        ranks = sorted(
            range(self._world.size) if self._is_shared else known, key=lambda rank: (rank not in missing, rank)
        )
        lines = [
            f"{reason}; no progress for {self._minutes():.3g} minutes (run.hang_minutes), so the run ends here; "
            "the same command goes on from its newest checkpoint"
        ]
        for rank in ranks[:LONGEST_LIST]:
            told = known.get(rank)
            if told is None:
                lines.append(f"  rank {rank}: never heard of")
                continue
            now = f"in {told.place}" if told.has_dumped else "does not answer"
            lines.append(f"  {told}, process {told.process}: step {told.step}, {told.phase}; {now}")
        if len(ranks) > LONGEST_LIST:
            lines.append(f"  and {len(ranks) - LONGEST_LIST} more")
        return [*lines, f"  stacks of all ranks that answer: {self._stacks}"] if self._is_shared else lines


# Whom the others wait for: told from who answers, who waits in an exchange, and who has made fewer of them.


def _missing(known: dict[int, Heartbeat], size: int) -> tuple[list[int], str]:
    """The ranks that the others wait for, and that as a sentence."""
    silent = [rank for rank in range(size) if rank not in known or not known[rank].has_dumped]
    if silent:
        return silent, f"{_named(silent, known)} is missing: stopped, gone, or cut off from the run folder"
    busy = [rank for rank, told in known.items() if not told.waits]
    if len(busy) < size and busy:
        return busy, f"{_named(busy, known)} does not come to where the others wait for it"
    if not busy and size > 1:
        return [], f"{_named(sorted(known), known)} wait for one another: the network between them may be cut"
    exchanges = {told.exchanges for told in known.values()}
    behind = [rank for rank, told in known.items() if told.exchanges == min(exchanges)]
    if len(exchanges) > 1:
        return behind, f"{_named(behind, known)} is behind the others"
    return [], f"{_named(sorted(known), known)}: no progress, and none waits for another"


def _named(ranks: list[int], known: dict[int, Heartbeat]) -> str:
    names = [str(known.get(rank, f"rank {rank}")) for rank in ranks[:LONGEST_LIST]]
    return ", ".join(names) + (f" and {len(ranks) - len(names)} more" if len(ranks) > len(names) else "")


def _whereabouts(frame: FrameType) -> tuple[str, bool]:
    """(place of the innermost frame, Heartbeat.waits)."""
    code = frame.f_code
    files = [outer.f_code.co_filename for outer, _ in traceback.walk_stack(frame)]
    waits = code.co_qualname in WAITING or any(part in name for name in files for part in EXCHANGES)
    return f"{code.co_filename}:{frame.f_lineno} {code.co_name}", waits


def _stacks() -> str:
    """The stacks of all threads, innermost call last; no source is read, for its file system may be what hangs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}:\n")
        calls = [(inner.f_code.co_filename, line, inner.f_code.co_name) for inner, line in traceback.walk_stack(frame)]
        lines += [f"  {file}:{line} {name}\n" for file, line, name in reversed(calls)]
    return "".join(lines)


# The folders in the run folder. What else somebody keeps in them stays.


def is_written_by_ranks(folder: Path) -> bool:
    """Whether a run's folder for heartbeats or stacks holds nothing but what ranks have written."""
    return folder.is_dir() and not folder.is_symlink() and all(map(_is_of_a_rank, folder.iterdir()))


def _is_of_a_rank(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(100)
    # An empty one: killed when it was made.
    is_own = {name for name, words in _FIRST_WORDS.items() if not text or text.startswith(words)}
    return any(name.fullmatch(path.name) for name in is_own)


def _remove_heartbeats(folder: Path) -> None:
    """Remove the files of ranks, of an earlier start with more of them, too; then the folder, if it is empty."""
    with contextlib.suppress(OSError):
        for path in () if folder.is_symlink() else folder.iterdir():
            if path.name == ALARM or _HEARTBEAT.fullmatch(path.name):
                path.unlink()
        folder.rmdir()


# Writing. Disks may be full, away, or what hangs: nothing here may fail or wait for a lock.


def _overwrite(path: Path, text: str) -> None:
    """Write a file over, opened anew so that network file systems pass it on; a refusal is met, and told, elsewhere."""
    with contextlib.suppress(OSError):
        write_over(path, text.encode().ljust(FILE_BYTES))


def _text(path: Path) -> str:
    """Raises OSError, ValueError."""
    with open_to_read(path) as file:
        return file.read().decode()


def _print(text: str) -> None:
    """Print to the descriptor of stderr: the main thread may hold the lock of sys.stderr."""
    # Below a bar that stands on the terminal's last line.
    data = ("\n" * (mistakes.aside is not mistakes.NOTHING_ASIDE) + text).encode(errors="replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
