"""Memory that a step frees on a CPU, which the next one takes again."""

import ctypes
import os
from pathlib import Path

# Of glibc's mallopt, as its malloc.h has them: the number of a parameter, and its new value in bytes.
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 2**31 - 1), (-3, 2**30)
# With one of these the user has decided.
VARIABLES = (
    *("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"),
    "MALLOC_TRIM_THRESHOLD_",
)
# What is kept is in pieces, of which not all fit what comes next: at 1.0 to 1.75 times the peak runs were measured.
ROOM = 4


def keep_freed_memory(memory: int) -> None:
    """Let this process keep what it frees, blocks of up to a GiB, if `memory` is several times what it has needed.

    glibc hands blocks of more than 32 MiB back to the system at once, and smaller ones where they are the last of its
    heap; the system clears every page of them anew, in each step. Other C libraries, and allocators in the place of
    glibc's, stay as they are.

    Args:
        memory: bytes that this process may have.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in VARIABLES) or memory < ROOM * _peak():
        return
    mallopt(*MMAP_THRESHOLD)
    mallopt(*TRIM_THRESHOLD)


def _peak() -> float:
    """The most bytes that this process has had so far; infinity where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), float("inf"))
