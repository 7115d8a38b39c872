"""The time of a call: CUDA's events on a GPU, a clock on a CPU, behind one interface."""

import time
from collections.abc import Callable

import torch
from record import quantile

# Calls before those that count, and the share of the time that they take at least: clocks rise meanwhile.
WARM_UP, WARM_SHARE = 3, 0.3
FEWEST, MOST = 5, 50
# More than the second-level cache of any card holds (H200: 50 MB).
FLUSHED = 256 << 20


class Clock:
    """Time on a CPU, whose calls are over when they return."""

    def __init__(self):
        self.laps: list[float] = []

    def flush(self) -> None:
        """Nothing: the inputs stay in the caches, and this is said."""

    def lap(self, call: Callable[[], object]) -> None:
        """Run and time a call."""
        began = time.perf_counter()
        call()
        self.laps.append(time.perf_counter() - began)

    def wait(self) -> None:
        """Until everything that was begun is over."""

    def seconds(self) -> list[float]:
        """Of each lap."""
        return self.laps


class Events:
    """Time on a GPU, between events in the stream that the calls run in."""

    def __init__(self):
        self.pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.rubbish = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")

    def flush(self) -> None:
        """Put something else into the second-level cache."""
        self.rubbish.zero_()

    def lap(self, call: Callable[[], object]) -> None:
        """Begin a call, between two events."""
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        call()
        pair[1].record()
        self.pairs.append(pair)

    def wait(self) -> None:
        """Until everything that was begun is over."""
        torch.cuda.synchronize()

    def seconds(self) -> list[float]:
        """Of each lap."""
        self.wait()
        return [begin.elapsed_time(end) / 1e3 for begin, end in self.pairs]


def make_timer(device: str) -> Clock | Events:
    """The timer of a device, cuda or cpu."""
    return Events() if device == "cuda" else Clock()


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """What a call launches on the GPU, from a graph: without the time that the CPU takes to ask for it.

    Raises:
        RuntimeError: the call waits for the GPU, which a graph cannot hold.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # what is made once, libraries' handles and memory, is no part of the graph
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def launched(call: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Of what a call runs on the GPU the name, how often, and microseconds, the longest first."""
    call()
    torch.cuda.synchronize()
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, tuple[int, float]] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, microseconds = found.get(event.name, (0, 0.0))
            found[event.name] = count + 1, microseconds + event.time_range.elapsed_us()
    rows = [(name, count, round(microseconds, 1)) for name, (count, microseconds) in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def timed(call: Callable[[], object], timer: Clock | Events, budget: float) -> dict[str, float]:
    """Milliseconds of a call after a warm-up, with the cache flushed before each: median, 20 % and 80 %.

    Args:
        budget: seconds for all; at least FEWEST calls are made, at most MOST.
    """
    began, calls = time.perf_counter(), 0
    while calls < WARM_UP or time.perf_counter() - began < WARM_SHARE * budget:
        at = time.perf_counter()
        call()
        timer.wait()
        once, calls = time.perf_counter() - at, calls + 1
    for _ in range(max(FEWEST, min(MOST, int(budget / max(once, 1e-6))))):
        timer.flush()
        timer.lap(call)
    milliseconds = [1e3 * seconds for seconds in timer.seconds()]
    shares = {"median": 0.5, "p20": 0.2, "p80": 0.8}
    return {name: quantile(milliseconds, share) for name, share in shares.items()} | {"runs": len(milliseconds)}
