"""The ranks of a run find one another: whoever waits says, after a while, for whom and where."""

import contextlib
import datetime
import os
import socket
import threading
import time
from collections.abc import Iterator

import torch.distributed

from longmix.data_prep.errors import MachineFault, UserError, reason_of

from ..settings.mistakes import say
from .launch_environment import ADDRESS, PORT, EnvironmentFault, EnvironmentMistake, LaunchEnvironment

# Ranks that load from one file system begin some seconds apart; later lines come twice as late as the one before.
FIRST_LINE_SECONDS = 15.0
# A name server that does not answer may do so a little later; one that knows no such name will not.
RESOLVING_SECONDS = 10.0
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.5
LONGEST_LIST = 16
_COUNT, _ALL = "arrived", "all"
# Of torchrun: whether its agent is the host, and how often it has started the ranks again.
_AGENT, _ATTEMPT = "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"


def meet(place: LaunchEnvironment, timeout: datetime.timedelta) -> torch.distributed.Store:
    """The store of the run, when every rank has come to it.

    Raises:
        UserError: the environment does not say where to meet, or names a place where that is impossible.
        MachineFault: not all have come in time, the port is taken, or no name server answers.
    """
    address, port = place.require_meeting_point()
    _resolve(address, port)
    # Under torchrun its agent is the host.
    has_agent = os.environ.get(_AGENT) == "True"
    is_host = place.rank == 0 and not has_agent
    arrivals = _Arrivals(place, f"{address}:{port}")
    with arrivals.told():
        try:
            store = torch.distributed.TCPStore(
                address, port, place.size, is_host, timeout=timeout, wait_for_workers=False, multi_tenant=True
            )
        except torch.distributed.DistNetworkError as error:
            doing = f"listen at {address}:{port}" if is_host else f"reach rank 0 at {address}:{port}"
            told = (
                f"rank {place.rank} cannot {doing} ({_first_line(error)}): {ADDRESS} and {PORT} must name the first "
                "rank's machine, and a free port there"
            )
            # Somebody else may leave it free by the next start, which may also have another one.
            raise (MachineFault if "EADDRINUSE" in str(error) else UserError)(told) from None
        if has_agent:
            # An agent's store outlives the ranks: those that it starts again must not find what the others left.
            store = torch.distributed.PrefixStore(f"attempt {os.environ.get(_ATTEMPT, '0')}", store)
        arrivals.wait(torch.distributed.PrefixStore("longmix", store), timeout)
    return store


class _Arrivals:
    """The ranks that have come."""

    def __init__(self, place: LaunchEnvironment, where: str):
        self._place, self._where = place, where
        self._store: torch.distributed.Store | None = None

    def wait(self, store: torch.distributed.Store, timeout: datetime.timedelta) -> None:
        """Note this rank, and wait for the others. Raises MachineFault if they do not come in time."""
        rank, size = self._place.rank, self._place.size
        store.set(f"rank {rank}", "")
        self._store = store
        deadline, pause = time.monotonic() + timeout.total_seconds(), SHORTEST_PAUSE_SECONDS
        try:
            if store.add(_COUNT, 1) == size:
                store.set(_ALL, "")
            # Asked again and again: while a store waits itself, nobody can ask it who is missing.
            while not store.check([_ALL]):
                if time.monotonic() > deadline:
                    minutes = timeout.total_seconds() / 60
                    raise MachineFault(
                        f"rank {rank} of {size} waited {minutes:.0f} minutes at {self._where} for "
                        f"{self._missing() or 'the others'}"
                    )
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except torch.distributed.DistError as error:
            reason = _first_line(error)
            raise MachineFault(
                f"rank {rank} of {size}: the first rank, at {self._where}, has gone ({reason})"
            ) from None

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Within it the others are waited for, which a thread tells."""
        is_over = threading.Event()
        threading.Thread(target=self._tell, args=(is_over,), name="longmix-meeting", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def _tell(self, is_over: threading.Event) -> None:
        began, pause = time.monotonic(), FIRST_LINE_SECONDS
        while not is_over.wait(pause):
            pause, rank = 2 * pause, self._place.rank
            # Who has reached the first rank waits with it, which tells for both.
            missing = "rank 0" if self._store is None else self._missing() if rank == 0 else ""
            if missing:
                seconds = time.monotonic() - began
                say(
                    f"longmix: rank {rank} of {self._place.size} waits for {missing} at {self._where} ({seconds:.0f} s)"
                )

    def _missing(self) -> str:
        """The ranks that have not come, in words."""
        ranks = []
        for rank in range(self._place.size):
            with contextlib.suppress(RuntimeError):
                if not self._store.check([f"rank {rank}"]):
                    ranks.append(rank)
            if len(ranks) > LONGEST_LIST:
                break
        if not ranks:
            return ""
        names = ", ".join(map(str, ranks[:LONGEST_LIST])) + (" and more" if len(ranks) > LONGEST_LIST else "")
        return f"rank{'s' * (len(ranks) > 1)} {names}"


def _resolve(address: str, port: int) -> None:
    """Raise EnvironmentMistake if the name of the first rank's machine is not known, MachineFault if no name server
    answers.
    """
    deadline, is_told = time.monotonic() + RESOLVING_SECONDS, False
    while True:
        try:
            socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            return
        except (OSError, UnicodeError) as error:
            final = not isinstance(error, socket.gaierror) or error.errno != socket.EAI_AGAIN
            if final or time.monotonic() > deadline:
                kind = EnvironmentMistake if final else EnvironmentFault
                raise kind(
                    f"{ADDRESS} is {address[:100]!r}, which does not resolve ({reason_of(error)}): give the name or "
                    "the number of the first rank's machine"
                ) from None
            if not is_told:
                say(f"longmix: {ADDRESS} {address} does not resolve ({reason_of(error)}); trying again")
            is_told = True
            time.sleep(1.0)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
