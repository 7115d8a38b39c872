"""The speed of a run and the device it is measured on: tokens per second, waiting for data, share of the peak."""

import contextlib
import os
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..processes.world import World
from .stream import BatchStream

# Peak dense matrix throughput of a device, flop/s, from the vendor's data sheets.
_PEAK = {
    "V100": {"fp16": 125e12, "fp32": 15.7e12},
    "A100": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    "H100": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H200": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
}


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Peak flop/s of one device; None where no data sheet says (CPUs, other devices)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peaks.get(precision) for model, peaks in _PEAK.items() if model in name), None)


def model_flops_utilisation(tokens_per_second: float, matrix_parameters: int, peak: float | None) -> float | None:
    """mfu = 6 x parameters outside embeddings x tokens per second / peak of all devices.

    6 flop per parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1). What a mixer does beside
    its matrices, and the output projection when it is tied to the embedding, is not counted.
    """
    return None if peak is None else 6 * matrix_parameters * tokens_per_second / peak


@dataclass
class Interval:
    """The stretch of training since the last record; time spent elsewhere (evaluation, checkpoints) is taken out."""

    started: float = field(default_factory=time.perf_counter)
    waited: float = 0.0
    tokens: int = 0

    @contextlib.contextmanager
    def paused(self):
        began = time.perf_counter()
        yield
        self.started += time.perf_counter() - began

    def figures(
        self, stream: BatchStream, tokens: int, world: World, matrix_parameters: int, precision: str
    ) -> dict[str, float | None]:
        """Speed since the start of the interval; `tokens`: consumed by the run so far. Every rank must call it."""
        seconds = time.perf_counter() - self.started
        tokens_per_second = (tokens - self.tokens) / seconds
        waited = world.sum(torch.tensor([stream.waited - self.waited], dtype=torch.float64)).item()
        peak = peak_flops(world.device, precision)
        return {
            "tokens_per_second": tokens_per_second,
            "data_wait_fraction": waited / world.size / seconds,
            "mfu": model_flops_utilisation(tokens_per_second, matrix_parameters, peak and peak * world.size),
        }


def device_name(kind: str) -> str:
    """The name of this process's torch device, cuda or cpu: the GPU, or the processor and the cores it may use."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        if named:
            return f"{named[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return f"CPU {platform.machine()}, {os.cpu_count()} cores"
