"""What has been measured, a line of JSON each, written as it comes: a kill at any moment costs the line in progress."""

import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

# A measurement that has failed so often is not made again.
MOST_FAILURES = 2
DONE, FAILED, ABSENT = "done", "failed", "absent"


@dataclass(frozen=True)
class Measurement:
    """A row of the page to be.

    Attributes:
        key: unique; "STAGE/...", from which the page knows what it is.
        job: "module:function", called in a process of its own with the setting and `arguments`; returns a map of
            figures that JSON can hold.
        seconds: how long it may take.
        alone: nothing else may run at the same time, for it is timed.
    """

    key: str
    job: str
    arguments: dict = field(default_factory=dict)
    seconds: float = 60.0
    alone: bool = True


class Records:
    """The file of results, held by this process alone; what a killed process left half written is dropped."""

    def __init__(self, path: Path):
        """Raises BlockingIOError where another process holds it."""
        self.stream = open(path, "a+b")  # noqa: SIM115 closed by `close`
        fcntl.flock(self.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.stream.seek(0)
        text = self.stream.read()
        whole = text.rfind(b"\n") + 1
        self.stream.truncate(whole)
        self.rows = [json.loads(line) for line in text[:whole].splitlines()]

    def append(self, key: str, status: str, **more: object) -> None:
        """Write a row, to the disk."""
        row = {"key": key, "status": status, "time": round(time.time(), 1), **more}
        self.stream.write(json.dumps(row).encode() + b"\n")
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.rows.append(row)

    def newest(self) -> dict[str, dict]:
        """Key -> its last row."""
        return {row["key"]: row for row in self.rows}

    def due(self, measurements: list[Measurement]) -> list[Measurement]:
        """Those that have not been made: neither done, nor found to be impossible here, nor failed twice."""
        newest = self.newest()
        failures = [row["key"] for row in self.rows if row["status"] == FAILED]
        return [
            one
            for one in measurements
            if newest.get(one.key, {}).get("status") not in (DONE, ABSENT) and failures.count(one.key) < MOST_FAILURES
        ]

    def close(self) -> None:
        self.stream.close()
