"""The memory of this machine, and the processes that share it."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MACHINE, OWN_STATUS = Path("/proc/meminfo"), Path("/proc/self/status")


def host_memory() -> int:
    """Bytes that the processes of this machine may have together: memory and swap, or less in a container or in a job
    of a cluster."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + (told_bytes(MACHINE, "SwapTotal") or 0)
    for path in _cgroup_limits():
        try:
            memory = min(memory, int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return memory


def free_memory() -> int:
    """Bytes of `host_memory` that no process has, as the system tells for the whole machine."""
    free = told_bytes(MACHINE, "MemAvailable")
    return host_memory() if free is None else min(free, host_memory())


def told_bytes(file: Path, name: str) -> int | None:
    """Bytes of a line `name:  number kB` in one of the system's files; None if it has none."""
    try:
        lines = file.read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
    except (OSError, ValueError, IndexError):
        return None


def _cgroup_limits() -> Iterator[Path]:
    """Files with the limits of the groups that this process is in, of either version: its own group and those above."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        lines = []
    # Of a container that does not see where its group lies, the topmost that it sees is its own.
    for line in (*lines, "0::/", "0:memory:/"):
        _, kinds, group = line.split(":", 2)
        for part in (Path(group), *Path(group).parents):
            if kinds == "":
                yield CGROUPS / str(part).lstrip("/") / "memory.max"
            elif "memory" in kinds.split(","):
                yield CGROUPS / "memory" / str(part).lstrip("/") / "memory.limit_in_bytes"


def processes_here() -> int | None:
    """Processes of the run on this machine, as their launcher says in LOCAL_WORLD_SIZE; None where none has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 0) or None
