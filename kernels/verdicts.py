"""Verdicts on Triton kernels (proving.py): what became of a proof, kept in a file for later processes."""

import dataclasses
import fcntl
import hashlib
import json
import os
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .common.safe_files import new_beside, open_lock, read_private

LONGEST_WAIT = 600  # seconds for the proofs of another process
MOST_ATTEMPTS = 3  # that end without a verdict


@dataclasses.dataclass
class Outcome:
    """What became of a proof. `error` is the largest relative one, `reason` what was wrong, in one line; times are None
    for what was not done. `decided`: the next attempt would end no other way."""

    passed: bool
    error: float | None = None
    seconds: float | None = None
    reason: str | None = None
    decided: bool = True
    compile_seconds: float | None = None
    milliseconds: float | None = None
    portable_milliseconds: float | None = None


def digest(value: object) -> str:
    """A short name of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def kept_identities(folder: Path) -> list[dict[str, object]]:
    """What the verdicts in a folder are about."""
    found = []
    for path in sorted(folder.glob("*-proof-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found.append(json.loads(read_private(path))["identity"])
    return found


class VerdictFile:
    """The file of a verdict. While there is none it counts the attempts, which may have ended their processes."""

    def __init__(self, folder: Path, identity: dict[str, object]):
        self.identity = identity
        self.path = folder / f"{identity['operation']}-proof-{digest(identity)}.json"
        self.outcome: Outcome | None = None

    def verdict(self) -> Outcome | None:
        """The outcome of this attempt, or the one that the file holds; None: there is nothing to go by."""
        attempts, outcome = self._read()
        if outcome is None and attempts >= MOST_ATTEMPTS:
            outcome = Outcome(False, reason=f"{attempts} processes ended while it was proved")
        self.outcome = self.outcome or outcome
        return self.outcome

    def begin(self, anew: bool) -> None:
        """Count one more attempt; `anew`: the first."""
        self.attempts = 1 if anew else self._read()[0] + 1
        self._write(None)

    def withdraw(self) -> None:
        """Uncount the attempt."""
        self.attempts -= 1
        self._write(None)

    def end(self, outcome: Outcome) -> None:
        """Keep the outcome, if it is decided, or the last attempt's."""
        self.outcome = outcome
        if outcome.decided or self.attempts >= MOST_ATTEMPTS:
            self._write(outcome)

    def _read(self) -> tuple[int, Outcome | None]:
        """(attempts, outcome): (0, None) for a file that is missing, damaged, or about something else."""
        try:
            content = json.loads(read_private(self.path))
            if content["identity"] != self.identity:
                return 0, None
            attempts, outcome = content["attempts"], content["outcome"]
            if type(attempts) is not int:
                return 0, None
            return attempts, None if outcome is None else _checked(Outcome(**outcome))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return 0, None

    def _write(self, outcome: Outcome | None) -> None:
        """Keep it for later processes; where that cannot be, they try for themselves."""
        kept = None if outcome is None else dataclasses.asdict(outcome)
        content = json.dumps({"identity": self.identity, "attempts": self.attempts, "outcome": kept}, indent=1)
        with suppress(OSError):
            for left in self.path.parent.glob(f".{self.path.name}.*"):
                left.unlink(missing_ok=True)
            temporary = new_beside(self.path, 0o600)
            with open(temporary, "w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)


def _checked(outcome: Outcome) -> Outcome:
    """Raise TypeError unless all is of the declared types, and only a failure has a reason."""
    for name, declared in typing.get_type_hints(Outcome).items():
        if not isinstance(getattr(outcome, name), declared):
            raise TypeError(name)
    if outcome.passed == (outcome.reason is not None):
        raise TypeError("reason")
    return outcome


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While no other process proves on such a card; without that where one takes too long, or nothing can be locked."""
    try:
        lock = open_lock(path)
    except OSError:
        yield
        return
    with lock:
        deadline = time.monotonic() + LONGEST_WAIT
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released with the process, however it ends
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                break
        yield
