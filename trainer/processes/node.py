"""A look at this node, of seconds: its memory, its arithmetic, and with a launcher its way to the others.

What fails says which node should not be used: a job that goes on elsewhere needs no more than that.
"""

import contextlib
import datetime
import json
import socket
import time
from collections.abc import Iterable, Iterator

import torch

from longmix.data_prep.errors import reason_of

from .launch_environment import LaunchEnvironment
from .world import gpus_by_slurm

HOST_BYTES, GPU_BYTES = 2**28, 2**30
SIDE, GPU_SIDE = 1024, 8192
REPEATS = 3
# Relative error of a product in fp32, and in 16 bits, against fp64: far above rounding.
LARGEST_ERRORS = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 3e-2}
PATIENCE_SECONDS = 60.0
EXCHANGED = 2**24


def look(place: LaunchEnvironment) -> tuple[list[str], bool]:
    """Lines about this node, and whether nothing is wrong with it.

    Args:
        place: of this process among those that look, one on each node.
    """
    name, lines, problems = socket.gethostname(), [], []
    for device in (torch.device("cpu"), *_gpus()):
        for what, check in (("memory", _memory), ("products", _products)):
            with _noting(f"{device} {what}", problems):
                lines.append(f"{device}: {check(device)}")
    given, seen = gpus_by_slurm(), torch.cuda.device_count()
    if seen < given and seen != 1:  # each task may see its own alone
        problems.append(f"GPUs: Slurm has given {given}, and torch sees {seen}")
    if place.is_worker and place.size > 1:
        with _noting("network", problems):
            lines.append(_exchange(place))
    told = [f"wrong: {problem}" for problem in problems] or ["nothing is wrong"]
    return [f"node {name}: {line}" for line in (*lines, *told)], not problems


@contextlib.contextmanager
def _noting(what: str, problems: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of every kind: drivers, memory, sockets
        problems.append(f"{what}: {reason_of(error)}")


def _gpus() -> list[torch.device]:
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


class _Wrong(Exception):
    """What came back is not what was to come."""


def _memory(device: torch.device) -> str:
    """Write a pattern, copy it, and read both."""
    size = HOST_BYTES
    if device.type == "cuda":
        size = min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    seconds = []
    for repeat in range(REPEATS):
        written = torch.arange(size // 16, dtype=torch.int64, device=device).mul_(0x9E3779B1).add_(repeat)
        copied = torch.zeros_like(written)
        began = _now(device)
        copied.copy_(written)
        seconds.append(_now(device) - began)
        expected = torch.arange(size // 16, dtype=torch.int64, device=device)
        if not torch.equal(copied.sub_(repeat), expected.mul_(0x9E3779B1)):
            raise _Wrong("what was written is not what is read: its memory may be faulty")
    rate = size / min(seconds)
    return f"memory: {size / 2**20:.0f} MiB written and read {REPEATS} times, copied at {rate / 1e9:.1f} GB/s"


def _products(device: torch.device) -> str:
    """Multiply matrices more than once, and compare: with each other to the bit, and with fp64."""
    side = GPU_SIDE if device.type == "cuda" else SIDE
    half = torch.bfloat16
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        half = torch.float16
    told = []
    for kind in (torch.float32, half):
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(side, side, generator=generator).to(device, kind) for _ in range(2))
        first = left @ right
        began = _now(device)
        if not all(torch.equal(left @ right, first) for _ in range(REPEATS)):
            raise _Wrong(f"the same product in {kind} differs from time to time: its arithmetic may be faulty")
        rate = REPEATS * 2 * side**3 / (_now(device) - began)
        rows = slice(0, 64)
        exact = left[rows].double() @ right.double()
        error = ((first[rows].double() - exact).norm() / exact.norm()).item()
        if not error < LARGEST_ERRORS[kind]:
            raise _Wrong(f"a product in {kind} is off by {error:.1e}: its arithmetic may be faulty")
        told.append(f"{rate / 1e12:.2g} TFLOP/s in {str(kind).removeprefix('torch.')}")
    return f"products: {', '.join(told)}"


def _exchange(place: LaunchEnvironment) -> str:
    """Sum whole numbers over all nodes. What others do wrong is no fault of this one: it is told, and that is all."""
    address, port = place.require_meeting_point()
    patience = datetime.timedelta(seconds=PATIENCE_SECONDS)
    try:
        store = torch.distributed.TCPStore(address, port, None, place.rank == 0, patience, wait_for_workers=False)
        store.set(f"here/{place.rank}", socket.gethostname())
    except Exception as error:
        raise _Wrong(f"the first node ({address}:{port}) cannot be reached: {reason_of(error)}") from None
    missing = _missing(store, place)
    if missing:
        # Whoever waits in the exchange would wait for them.
        return (
            f"network: {len(missing)} of {place.size} nodes have not come (ranks {', '.join(map(str, missing[:16]))})"
        )
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    device = torch.device("cuda", 0) if kind == "nccl" else torch.device("cpu")
    torch.distributed.init_process_group(kind, store=store, rank=place.rank, world_size=place.size, timeout=patience)
    try:
        numbers = torch.arange(EXCHANGED // 8, dtype=torch.int64, device=device)
        torch.distributed.all_reduce(numbers.clone())  # connects
        began = _now(device)
        total = numbers + place.rank
        torch.distributed.all_reduce(total)
        seconds = _now(device) - began
        expected = numbers * place.size + place.size * (place.size - 1) // 2
        if not torch.equal(total, expected):
            raise _Wrong("a sum over the nodes is wrong: its network or its memory may be faulty")
    finally:
        torch.distributed.destroy_process_group()
    return f"network: {EXCHANGED / 2**20:.0f} MiB summed over {place.size} nodes, {EXCHANGED / seconds / 1e9:.2g} GB/s"


def _missing(store: torch.distributed.TCPStore, place: LaunchEnvironment) -> list[int]:
    """The ranks that have not come in time, as the first one sees it, which stays until the others know."""
    if place.rank > 0:
        store.wait(["missing"], datetime.timedelta(seconds=2 * PATIENCE_SECONDS))
        told = json.loads(store.get("missing"))
        store.set(f"knows/{place.rank}", "")
        return told
    missing = _awaited(store, "here", range(place.size))
    store.set("missing", json.dumps(missing))
    _awaited(store, "knows", [rank for rank in range(1, place.size) if rank not in missing])
    return missing


def _awaited(store: torch.distributed.TCPStore, what: str, ranks: Iterable[int]) -> list[int]:
    """Those of the ranks that do not say `what` in time."""
    deadline, silent = time.monotonic() + PATIENCE_SECONDS, list(ranks)
    while silent and time.monotonic() < deadline:
        silent = [rank for rank in silent if not store.check([f"{what}/{rank}"])]
        time.sleep(0.05 if silent else 0)
    return silent


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
