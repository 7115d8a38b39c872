"""The speed of a run and the device it is measured on: tokens per second, waiting for data, share of the peak."""

import contextlib
import os
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from longmix.data_prep.errors import reason_of

from ..models.flops import Flops, count_flops
from ..processes.cards import card_of
from ..processes.world import World
from ..settings.mistakes import say
from .dry_run import longest_sample
from .memory import GIGABYTE
from .setup import Prepared
from .stream import BatchStream


class Utilisation:
    """The share of its devices' peak that a run reaches.

    Args:
        prepared: the run.
        world: whose devices run it, all of one kind.
    """

    def __init__(self, prepared: Prepared, world: World):
        card = card_of(torch.cuda.get_device_name(world.device)) if world.device.type == "cuda" else None
        self._peak = None if card is None else card.peak(prepared.precision)
        self._flops = None if self._peak is None else _flops(prepared, world)
        self._devices = world.size

    def share(self, tokens: float, items: float, seconds: float) -> float | None:
        """What forward and backward passes must compute for tokens and items of the loss, without padding, over what
        the devices could have; None where nothing says what a device can (a CPU, other cards), or the model takes."""
        if self._flops is None or self._peak is None:
            return None
        return self._flops.of_training(tokens, items) / (seconds * self._peak * self._devices)


def _flops(prepared: Prepared, world: World) -> Flops | None:
    positions = longest_sample(prepared.data)
    try:
        return count_flops(prepared.model_configuration, prepared.objective.auto_class, positions)
    except Exception as error:  # a model of others may take other inputs, or look at their values
        if world.is_first:
            say(f"note: there will be no mfu, for the operations of this model cannot be counted: {reason_of(error)}")
        return None


@dataclass
class Interval:
    """The stretch of training since the last record, or since this start of the run; time spent elsewhere (evaluation,
    checkpoints) is taken out.

    Attributes:
        tokens: consumed by the run before it.
        items: of the losses since the last record, before it: 0 but where a run goes on between two records.
    """

    started: float = field(default_factory=time.perf_counter)
    waited: float = 0.0
    tokens: int = 0
    items: float = 0.0

    @contextlib.contextmanager
    def paused(self):
        began = time.perf_counter()
        yield
        self.started += time.perf_counter() - began

    def figures(
        self, stream: BatchStream, tokens: int, items: float, world: World, utilisation: Utilisation
    ) -> dict[str, float | None]:
        """Speed since the start of the interval. Every rank must call it.

        Args:
            tokens: consumed by the run so far.
            items: of the losses since the last record.
        """
        seconds = time.perf_counter() - self.started
        passed = tokens - self.tokens
        waited = world.sum(torch.tensor([stream.waited - self.waited], dtype=torch.float64)).item()
        return {
            "tokens_per_second": passed / seconds,
            "data_wait_fraction": waited / world.size / seconds,
            "mfu": utilisation.share(passed, items - self.items, seconds),
            "gpu_memory_gib": _peak_memory(world.device),
        }


def _peak_memory(device: torch.device) -> float | None:
    """GiB that tensors took on this GPU at the most since the last call; None on a CPU."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device) / GIGABYTE
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def device_name(kind: str) -> str:
    """The name of this process's torch device, cuda or cpu: the GPU, or the processor and the cores it may use."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        if named:
            return f"{named[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return f"CPU {platform.machine()}, {os.cpu_count()} cores"
