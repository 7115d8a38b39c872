"""The memory of this machine, and the processes that share it."""

import os
from pathlib import Path

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory() -> int:
    """Bytes that the processes of this machine may have together: memory and swap, or less in a container."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        memory += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("SwapTotal:"))
    except (OSError, ValueError, IndexError):
        pass
    for path in _CGROUP_LIMITS:
        try:
            memory = min(memory, int(Path(path).read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return memory


def processes_here() -> int:
    """Processes of the run on this machine, as their launcher says in LOCAL_WORLD_SIZE; 1 where none has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
