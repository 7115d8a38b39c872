"""The protocol that the step loop knows of an engine, and what both engines share."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ..optimization.optimizer import StepGuard
from ..processes.world import World
from ..samples.collate import Batch
from . import elastic, random_state


class Later:
    """A truth of the device on its way to the host, which goes on meanwhile: asked for, it waits for what the device
    was to do before it, and for nothing since."""

    def __init__(self, value: torch.Tensor):
        self._value = value.to("cpu", non_blocking=True)
        self._copied = None
        if value.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()

    def __bool__(self) -> bool:
        if self._copied is not None:
            self._copied.synchronize()
        return bool(self._value.numpy())


# forward(model, micro-batch on the device) -> (loss over the global batch's items, sums of statistics)
Forward = Callable[[torch.nn.Module, Batch], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class StepResult:
    """One optimizer step: whether it was taken, and the global gradient norm before clipping.

    Both may still be on the device. To read the norm then waits for all that was asked of that.
    """

    applied: bool | Later
    gradient_norm: float | torch.Tensor
    loss_scale: float = 1.0
    judged: bool = False  # dropped by the guard's judge


class Engine(Protocol):
    """A model with its optimizer, on every rank of a run; every rank must call every method.

    Attributes:
        module: the model as the engine wraps it, for forward passes.
        guard: asked before each optimizer step; its `judge` may drop it.
        stage: of ZeRO: what the ranks share out; 0 where each rank holds all.
    """

    module: torch.nn.Module
    guard: StepGuard
    stage: int

    def forward_backward(
        self, micro_batches: list[Batch], forward: Forward, following: Batch | None = None
    ) -> torch.Tensor:
        """Accumulate gradients over the micro-batches; the summed statistics.

        `following`: the micro-batch that the next step begins with, which a GPU may be sent ahead.
        """

    def step(self, learning_rate: float) -> StepResult:
        """Take the optimizer step, or drop it on every rank if the gradients are not finite or the guard says so."""

    def rehearsing(self, micro_batches: int) -> AbstractContextManager[None]:
        """Context of a step over so many micro-batches that is dropped: counters and loss scale do not move."""

    def collect(self, folder: Path) -> dict[str, Any]:
        """The files that this rank must write below `folder` to resume from here, by name; nothing is written yet.

        The values are the engine's own: they change with the next step.
        """

    def load(self, folder: Path) -> None:
        """Resume from a checkpoint. Raises UserError if it is of no use to this run."""

    def gather(self) -> dict[str, torch.Tensor]:
        """The whole model in fp32 on the CPU of rank 0; an empty map elsewhere."""


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on the device; numbers stay on the host, where the model reads them."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def spread_non_finite(loss: torch.Tensor) -> torch.Tensor:
    """The loss, or NaN gradients everywhere if it is not finite: so gradients alone decide about the step, on the
    device and without waiting for it."""
    return loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan)


def common_files(layout: elastic.Layout, world: World) -> dict[str, Any]:
    """The files that both engines give to a checkpoint, by name."""
    return {**({elastic.LAYOUT: asdict(layout)} if world.is_first else {}), **random_state.collect(world)}
