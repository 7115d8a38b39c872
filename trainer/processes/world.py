"""This process among the others: rank, device, and small exchanges over the CPU."""

import datetime
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed

from longmix.data_prep.errors import MachineFault, UserError, in_one_line, reason_of
from longmix.kernels.proving import HOST_RANK

from ..settings.mistakes import say
from .affinity import stay_near
from .launch import free_port
from .launch_environment import (
    ADDRESS,
    LOCAL_RANK,
    LOCAL_SIZES,
    PORT,
    RANK,
    SIZE,
    EnvironmentFault,
    EnvironmentMistake,
    LaunchEnvironment,
)
from .meeting import meet
from .precision import keep_digits_of_fp32
from .progress import START_MINUTES, Progress
from .signals import StopRequests


class SharedMistake(UserError):
    """A user's mistake that every rank knows of, so that all leave together; any other is met by one rank alone."""


class SharedFault(MachineFault):
    """A fault of the machine that every rank knows of, so that all leave together."""


class LoneMistake(UserError):
    """A mistake that a rank meets where others may wait in an exchange: it leaves at once, and they are ended."""


class LoneFault(MachineFault):
    """A fault of the machine that a rank meets where others may wait in an exchange: as a LoneMistake."""


# The exchanges. All run over gloo, on the CPU, beside those that an engine makes on its devices: small values whose
# order is the same on every rank, so that what one rank finds can be acted on by all.


@dataclass
class World:
    """Rank and size of the run, this process's device, and a group for CPU tensors (gloo on every machine).

    `progress` counts the exchanges, for the watchdog; `store` is where the ranks have met.
    """

    rank: int
    size: int
    device: torch.device
    control: torch.distributed.ProcessGroup
    progress: Progress = field(default_factory=Progress)
    store: torch.distributed.Store | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of a CPU tensor over all ranks, in place; on every rank."""
        self.progress.exchanges += 1
        if self.size > 1:
            torch.distributed.all_reduce(values, group=self.control)
        return values

    def sum_later(self, values: torch.Tensor) -> "LaterSum":
        """Begin to sum a CPU tensor over all ranks, and go on meanwhile; on every rank."""
        self.progress.exchanges += 1
        work = torch.distributed.all_reduce(values, group=self.control, async_op=True) if self.size > 1 else None
        return LaterSum(values, work, self.progress)

    def from_first(self, value: Any) -> Any:
        """A small object of rank 0, on every rank."""
        self.progress.exchanges += 1
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """A small object of every rank, in rank order, on every rank."""
        self.progress.exchanges += 1
        if self.size == 1:
            return [value]
        boxes: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(boxes, value, group=self.control)
        return boxes

    def barrier(self) -> None:
        self.progress.exchanges += 1
        if self.size > 1:
            torch.distributed.barrier(group=self.control)


@dataclass
class LaterSum:
    """A sum over all ranks that is under way.

    It counts as an exchange where it is begun, and again where it is waited for: a rank that hangs before either is
    behind those that have come further.
    """

    _values: torch.Tensor
    _work: torch.distributed.Work | None
    _progress: Progress

    def wait(self) -> torch.Tensor:
        """The sum, on every rank."""
        self._progress.exchanges += 1
        if self._work is not None:
            self._work.wait()
        return self._values


def agree(world: World, work: Callable[[], Any]) -> Any:
    """The result of `work` on this rank; what ends it on any rank ends all: SharedMistake, or SharedFault."""
    result, end = None, None
    try:
        result = work()
    except (LoneMistake, LoneFault):
        raise
    except (UserError, MachineFault) as error:
        end = isinstance(error, UserError), str(error)
    ends = [found for found in world.gather(end) if found is not None]
    if ends:
        is_mistake, text = ends[0]
        raise (SharedMistake if is_mistake else SharedFault)(text)
    return result


def begin_together(world: World, requests: StopRequests) -> None:
    """From here on a signal is noted on every rank, and no longer ends the one that it reaches first.

    A rank that waits here notes it already. A rank that still leaves at once does so before all have come; those that
    wait for it have as little to save, and leave with the same code.
    """
    requests.has_begun = True
    try:
        world.barrier()
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        # The signal that has ended the other rank is on its way to this one, too, if it is meant for all.
        time.sleep(1.0)
        if requests.requested is None:
            raise
        requests.leave()


# Joining and leaving. A launcher (ours, torchrun, Slurm's scripts) says where this process belongs.


# Of more ranks, each connects to those alone that it exchanges with, when it first does: with a socket for each other
# rank in every group, none would be left of the 1,024 files that a process may have open on most systems.
MOST_CONNECTED = 64
LAZY = "TORCH_GLOO_LAZY_INIT"
OPEN_MPI_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"


def join(hang_minutes: float = 0.0) -> World:
    """Join the run that the environment describes (see launch_environment.py); alone without a launcher.

    An exchange fails soon after a watchdog with `hang_minutes` has had the time to tell why.

    Raises:
        UserError: it does not describe a run.
        MachineFault: the other ranks do not come.
    """
    place = LaunchEnvironment.read()
    # Libraries read them behind our back.
    for name, value in ((RANK, place.rank), (SIZE, place.size), (LOCAL_RANK, place.local_rank)):
        os.environ[name] = str(value)
    os.environ[HOST_RANK] = str(place.local_rank)
    if place.size > MOST_CONNECTED:
        os.environ.setdefault(LAZY, "1")
    os.environ.setdefault(ADDRESS, "127.0.0.1")
    os.environ.setdefault(PORT, str(free_port()))
    _refuse_shared_gpu(place)  # before others wait for this rank
    _tell_idle_gpus(place)
    timeout = datetime.timedelta(minutes=max(hang_minutes, START_MINUTES) + 2)
    _wait_as_long(timeout)
    store = None
    if not torch.distributed.is_initialized():
        # A lone rank meets nobody: no port.
        store = torch.distributed.HashStore() if place.size == 1 else meet(place, timeout)
    if torch.cuda.is_available():
        # Slurm may show each task one device only: its local rank then exceeds what it sees.
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        # DeepSpeed and Accelerate take it for the device's number; DeepSpeed wants that of Open MPI to be the same.
        os.environ[LOCAL_RANK] = str(device.index)
        if OPEN_MPI_LOCAL_RANK in os.environ:
            os.environ[OPEN_MPI_LOCAL_RANK] = str(device.index)
        torch.cuda.set_device(device)
        stay_near(device)
        keep_digits_of_fp32()
    else:
        device = torch.device("cpu")
    # Else DeepSpeed, which Accelerate and transformers import behind our back, guesses it and warns about its guess.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if store is not None:
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, rank=place.rank, world_size=place.size, timeout=timeout, store=store
        )
    control = torch.distributed.new_group(backend="gloo", timeout=timeout)
    return World(place.rank, place.size, device, control, store=store)


def gpus_by_slurm() -> int:
    """The GPUs of this node that Slurm has given the job, where they are not hidden; 0 without Slurm."""
    told = os.environ.get("SLURM_GPUS_ON_NODE", "")
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return int(told) if re.fullmatch(r"\d{1,4}", told, re.ASCII) and not is_hidden else 0


def usable_gpus() -> int:
    """The GPUs that this process can compute with. To be asked by whatever trains.

    Raises:
        EnvironmentMistake: Slurm has given some, and this torch uses none.
        EnvironmentFault: Slurm has given some, and torch sees none.
    """
    # A driver that does not start is counted, and not available.
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 and (given := gpus_by_slurm()):
        told = f"Slurm has given this job {given} of {socket.gethostname()}'s GPUs, but torch "
        if torch.version.cuda is None and torch.version.hip is None:
            raise EnvironmentMistake(f"{told}was built for CPUs: install one for GPUs, or ask for no GPUs")
        raise EnvironmentFault(
            f"{told}sees none: longmix doctor --node looks at a node; CUDA_VISIBLE_DEVICES= trains on its CPUs"
        )
    return count


def _refuse_shared_gpu(place: LaunchEnvironment) -> None:
    """Raise as `usable_gpus` does, or EnvironmentMistake if more ranks were started here than there are GPUs."""
    if not place.is_worker:
        return
    count = usable_gpus()
    # One that sees a single GPU may have it to itself, unless our launcher, which hides none, has started it.
    if place.local_rank >= count > (0 if place.launcher is not None else 1):
        kind = EnvironmentFault if gpus_by_slurm() > count else EnvironmentMistake
        raise kind(
            f"rank {place.rank} is process {place.local_rank + 1} of {socket.gethostname()}, where torch sees {count} "
            f"GPU{'s' if count > 1 else ''}: start one process for each"
        )


def _tell_idle_gpus(place: LaunchEnvironment) -> None:
    """Say so if a launcher other than ours has started fewer processes here than there are GPUs: Slurm does not know of
    those that it does not hand out."""
    here = int(os.environ.get(LOCAL_SIZES[0], "0"))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if place.rank == 0 and place.launcher is None and 0 < here < count:
        say(
            f"longmix: {socket.gethostname()} has {count} GPUs, of which {here} will be used: start a process for each "
            f"(slurm/pretrain.sh: LONGMIX_TASKS_PER_NODE={count})"
        )


def _wait_as_long(timeout: datetime.timedelta) -> None:
    """Let groups of ranks for which nobody says how long they wait, as DeepSpeed's, wait as long as all others.

    NCCL's own would end the ranks after ten minutes, before a watchdog has told why.
    """
    groups = torch.distributed.distributed_c10d
    groups.default_pg_timeout = groups.default_pg_nccl_timeout = timeout


# Of a device that fails, or of a network between devices: not of what a program asked of them.
_OF_DEVICES = re.compile(
    "uncorrectable|ECC error|NVLink|unspecified launch failure|GPU is lost|fallen off the bus|CUDA error: unknown|"
    "STATUS_ALLOC_FAILED|NCCL error(?!.*invalid)",
    re.DOTALL,
)


def fault_of(error: BaseException) -> MachineFault | None:
    """The fault of the machine that an exception means; None: it is at what was asked of the machine."""
    found = in_one_line(error)
    if found is None and isinstance(error, RuntimeError) and _OF_DEVICES.search(str(error)):
        return MachineFault(f"the device or its network fails ({reason_of(error)[:300]})")
    return found if isinstance(found, MachineFault) else None


def is_lost_rank(error: Exception) -> bool:
    """Whether an exchange failed because another rank has gone: the reason of that rank matters, not this error."""
    signs = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "remote process exited")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def speaks_first(world: World) -> bool:
    """Whether no other rank has asked this before: ranks that meet one fault each by itself tell it once."""
    if world.store is None:
        return True
    try:
        return world.store.add("told", 1) == 1
    except RuntimeError:
        # The first rank has gone, and its store with it: nobody knows what it has told.
        return True


def leave(world: World) -> None:
    """Leave together, so that no rank looks like a failure to another."""
    world.barrier()
    torch.distributed.destroy_process_group()
