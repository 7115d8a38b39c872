"""This process among the others: rank, device, and small exchanges over the CPU."""

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed

from longmix.data_prep.errors import UserError

from .launch import free_port
from .progress import START_MINUTES, Progress
from .signals import StopRequests


class SharedMistake(UserError):
    """A user's mistake that every rank knows of, so that all leave together; any other is met by one rank alone."""


class LoneMistake(UserError):
    """A mistake that a rank meets where others may wait in an exchange: it leaves at once, and they are ended."""


# The exchanges. All run over gloo, on the CPU, beside those that an engine makes on its devices: small values whose
# order is the same on every rank, so that what one rank finds can be acted on by all.


@dataclass
class World:
    """Rank and size of the run, this process's device, and a group for CPU tensors (gloo on every machine).

    `progress` counts the exchanges, for the watchdog.
    """

    rank: int
    size: int
    device: torch.device
    control: torch.distributed.ProcessGroup
    progress: Progress = field(default_factory=Progress)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of a CPU tensor over all ranks, in place; on every rank."""
        self.progress.exchanges += 1
        if self.size > 1:
            torch.distributed.all_reduce(values, group=self.control)
        return values

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


def agree(world: World, work: Callable[[], Any]) -> Any:
    """The result of `work` on this rank; if it is a user's mistake on any rank, SharedMistake on all of them."""
    result, mistake = None, None
    try:
        result = work()
    except LoneMistake:
        raise
    except UserError as error:
        mistake = str(error)
    mistakes = [text for text in world.gather(mistake) if text is not None]
    if mistakes:
        raise SharedMistake(mistakes[0])
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


def _numbers(*names: str) -> list[int]:
    values = []
    for name in names:
        text = os.environ[name]
        if not text.isdigit():
            raise UserError(f"the environment variable {name} is {text!r}, but a launcher sets it to a whole number")
        values.append(int(text))
    return values


def join(hang_minutes: float = 0.0) -> World:
    """Join the run described by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; alone without them.

    An exchange fails soon after a watchdog with `hang_minutes` has had the time to tell why.

    Raises:
        UserError: these variables do not describe a run.
    """
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    rank, size, local_rank = _numbers("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if rank >= size:
        raise UserError(f"the environment says RANK={rank} of WORLD_SIZE={size}: a rank lies in 0 .. WORLD_SIZE - 1")
    if torch.cuda.is_available():
        # Slurm may show each task one device only: its local rank then exceeds what it sees.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    # Else DeepSpeed, which Accelerate and transformers import behind our back, guesses it and warns about its guess.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    timeout = datetime.timedelta(minutes=max(hang_minutes, START_MINUTES) + 2)
    if not torch.distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        # A lone rank meets nobody: no port.
        store = torch.distributed.HashStore() if size == 1 else None
        torch.distributed.init_process_group(backend, rank=rank, world_size=size, timeout=timeout, store=store)
    control = torch.distributed.new_group(backend="gloo", timeout=timeout)
    return World(rank, size, device, control)


def is_lost_rank(error: Exception) -> bool:
    """Whether an exchange failed because another rank has gone: the reason of that rank matters, not this error."""
    signs = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "remote process exited")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def leave(world: World) -> None:
    """Leave together, so that no rank looks like a failure to another."""
    world.barrier()
    torch.distributed.destroy_process_group()


def resolve_precision(precision: str, device: torch.device) -> str:
    """`auto` by the device: bf16 from A100 on, fp16 before (V100), fp32 on a CPU."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
