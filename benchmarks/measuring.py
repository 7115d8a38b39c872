"""Time and peak memory of calls, on a CPU and on a GPU."""

import ctypes
import math
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from longmix.trainer.samples.freed_memory import MMAP_THRESHOLD, TRIM_THRESHOLD
from longmix.trainer.samples.host_memory import OWN_STATUS, told_bytes

# A sample lasts at least so many seconds: shorter calls are repeated, after one that is not counted, so that each finds
# in the caches what its own last run has left there, not what another competitor has.
SHORTEST_SAMPLE = 2e-2
FEWEST_ROUNDS = 3
MOST_ROUNDS = 50
# A call that takes longer than so many seconds is run once.
SLOW = 5.0
_ONE_PAGE = 4096


@dataclass(frozen=True)
class Competitor:
    """A call to measure, and a context that it runs in; entering it is not measured."""

    name: str
    call: Callable[[], object]
    setting: Callable[[], AbstractContextManager] = nullcontext


def interleaved(competitors: list[Competitor], budget: float, device: torch.device) -> dict[str, list[float]]:
    """Seconds that each call takes, several times: in every round all of them run in turn, so that what else happens
    to the machine meets all alike.

    A round before them is not counted, save for what is SLOW, which runs no other time. Rounds go on until `budget`
    seconds are spent, but there are at least FEWEST_ROUNDS.
    """
    first = {competitor.name: sample(competitor, 1, device) for competitor in competitors}
    found = {name: [seconds] for name, seconds in first.items() if seconds > SLOW}
    others = [competitor for competitor in competitors if competitor.name not in found]
    repetitions = {name: max(1, math.ceil(SHORTEST_SAMPLE / seconds)) for name, seconds in first.items()}
    found.update({competitor.name: [] for competitor in others})
    started = time.perf_counter()
    for number in range(MOST_ROUNDS if others else 0):
        if number >= FEWEST_ROUNDS and time.perf_counter() - started > budget:
            break
        for competitor in others:
            found[competitor.name].append(sample(competitor, repetitions[competitor.name], device))
    return found


def sample(competitor: Competitor, repetitions: int, device: torch.device) -> float:
    """Seconds of one call, the mean of some in a row."""
    with competitor.setting():
        if repetitions > 1:
            competitor.call()
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repetitions):
                competitor.call()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / repetitions
        started = time.perf_counter()
        for _ in range(repetitions):
            competitor.call()
        return (time.perf_counter() - started) / repetitions


def peak_memory(competitor: Competitor, device: torch.device) -> int:
    """Bytes by which a call exceeds, at its peak, what was in use before; its result counts.

    On a CPU, of the whole process, whoever allocates: a process that has called `return_memory` first.
    """
    with competitor.setting():
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            competitor.call()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is what is in use now
        before = told_bytes(OWN_STATUS, "VmRSS")
        competitor.call()
        return max(told_bytes(OWN_STATUS, "VmHWM") - before, 0)


def return_memory() -> None:
    """Let free() hand every larger block back to the system, so that no call finds one that an earlier one left."""
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_THRESHOLD, 16 * _ONE_PAGE)
    library.mallopt(TRIM_THRESHOLD, 16 * _ONE_PAGE)


def limit_memory(size: int) -> None:
    """Let allocations fail that would take this process beyond its present memory and `size` bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (told_bytes(OWN_STATUS, "VmData") + size, hard))


def copy_bandwidth(device: torch.device) -> list[float]:
    """Bytes a second, read and written, of copying more than any cache holds; several times."""
    source = torch.zeros(1 << 26, device=device)
    target = torch.zeros_like(source)
    copying = Competitor("copy", lambda: target.copy_(source))
    sample(copying, 2, device)
    return [2 * source.nbytes / sample(copying, 2, device) for _ in range(9)]
