"""Memory that a step frees on a CPU, which the next one takes again."""

import ctypes
import os

from .host_memory import OWN_STATUS, told_bytes

# Parameters of glibc's mallopt, by its malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# With one of these the user has decided.
VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
# What is kept is in pieces, of which not all fit what comes next: at 1.0 to 1.75 times the peak runs were measured.
ROOM = 4


def keep_freed_memory(free: int) -> None:
    """Let this process keep what it frees, blocks of up to a GiB, if `free` is several times what it has needed.

    glibc hands blocks of more than 32 MiB back to the system at once, and smaller ones where they are the last of its
    heap; the system clears every page of them anew, in each step. Other C libraries, and allocators in the place of
    glibc's, stay as they are.

    Args:
        free: bytes that nobody has and this process may take.
    """
    mallopt, peak = getattr(ctypes.CDLL(None), "mallopt", None), told_bytes(OWN_STATUS, "VmHWM")
    if mallopt is None or any(name in os.environ for name in VARIABLES) or peak is None or free < ROOM * peak:
        return
    mallopt(MMAP_THRESHOLD, 2**30)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
