"""Starting the worker processes of one machine, forwarding signals to them, and adding up how they ended."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time

from longmix.data_prep.errors import MachineFault

from ..settings.exit_codes import INTERRUPTED, OURS, USER_MISTAKE
from ..settings.mistakes import tell
from .launch_environment import ADDRESS, LAUNCHER, LOCAL_RANK, PORT, RANK, SIZE, THREADS, launcher, usable_cpus
from .signals import STOP_SIGNALS, StopRequests

# The time in which the other workers may end by themselves once one has failed: an exchange that they wait in fails.
GRACE_SECONDS = 3.0


def free_port() -> int:
    """A port for the ranks of this machine to meet at, from those that systems do not give out by themselves: another
    process's connection does not take it before the first rank listens there."""
    numbers = random.SystemRandom()  # the seeded generators are the run's
    while True:
        port = numbers.randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def launch(arguments: list[str], processes: int, requests: StopRequests) -> int:
    """Run `python -m longmix.trainer ARGUMENTS` as `processes` workers on this machine; the exit code of the run.

    `requests`: those of this process, which are no longer listened to from here on.
    """
    environment = {
        **os.environ,
        SIZE: str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        ADDRESS: "127.0.0.1",
        PORT: str(free_port()),
        LAUNCHER: str(os.getpid()),
    }
    # Workers that each take every core slow one another down.
    environment.setdefault(THREADS, str(max(1, usable_cpus() // processes)))
    workers: list[subprocess.Popen] = []
    forwarded: set[int] = set()

    def forward(number: int, frame: object) -> None:
        forwarded.add(number)
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        # One that came before could not be forwarded.
        if requests.requested is not None:
            return INTERRUPTED
        for rank in range(processes):
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "longmix.trainer", *arguments],
                    env={**environment, RANK: str(rank), LOCAL_RANK: str(rank)},
                    # A terminal's Ctrl-C reaches this process alone, which passes it on once.
                    start_new_session=True,
                )
            )
            for number in forwarded:
                # It came while this worker was being started.
                workers[-1].send_signal(number)
        return _wait(workers, forwarded)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(workers: list[subprocess.Popen], forwarded: set[int]) -> int:
    """Wait for all; once one has failed the others are ended after a grace.

    A worker that a forwarded signal ended had not begun to listen: it was interrupted, and has lost nothing.
    """
    deadline, first_failure = None, None
    # Every one is asked every time: the first rank lives on while another has died.
    while None in [worker.poll() for worker in workers]:
        if first_failure is None:
            first_failure = _failure(workers)
            if first_failure is not None:
                deadline = time.monotonic() + GRACE_SECONDS
                _report_kill(*first_failure, forwarded)
        elif time.monotonic() > deadline:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
        time.sleep(0.05)
    codes = [worker.returncode for worker in workers]
    if USER_MISTAKE in codes:
        return USER_MISTAKE
    if any(-code in forwarded for code in codes):
        return INTERRUPTED
    if first_failure is None:
        first_failure = _failure(workers)
        if first_failure is not None:
            _report_kill(*first_failure, forwarded)
    if first_failure is not None:
        return OURS
    return INTERRUPTED if INTERRUPTED in codes else 0


def _report_kill(rank: int, code: int, forwarded: set[int]) -> None:
    """Tell of a killed worker, which cannot do so itself."""
    if code < 0 and -code not in forwarded:
        print(f"longmix: rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr, flush=True)


def _failure(workers: list[subprocess.Popen]) -> tuple[int, int] | None:
    """The (rank, exit code) of a worker that neither finished nor was interrupted; a killed one before others.

    A killed worker makes the others fail, never the other way round.
    """
    ended = ((worker.returncode, rank) for rank, worker in enumerate(workers))
    failed = sorted((code, rank) for code, rank in ended if code not in (None, 0, INTERRUPTED))
    return (failed[0][1], failed[0][0]) if failed else None


def leave_with_launcher(number: int = signal.SIGKILL) -> None:
    """In a worker of `launch`: get the signal `number` when the launcher dies, however it does (Linux)."""
    parent = launcher()
    if parent is None or not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, number)
    if os.getppid() != parent:
        tell(MachineFault(f"the process that has started this one ({LAUNCHER}={parent}) has gone"))
        os._exit(OURS)
