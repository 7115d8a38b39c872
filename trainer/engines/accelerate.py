"""The engine over Accelerate: one device, or DDP."""

import contextlib
import copy
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..optimization.optimizer import is_fused, make_guarded_optimizer, parameter_groups, set_learning_rate
from ..processes.world import World
from ..samples.collate import Batch
from ..settings.configuration import RunConfiguration
from . import elastic, random_state, state_files
from .base import Forward, Later, StepResult, common_files, spread_non_finite
from .feeding import Feed
from .load_checks import loading, refuse_not_finite


class AccelerateEngine:
    """An `Engine` on one device, or on several with DDP, over Accelerate."""

    stage = 0

    def __init__(self, model: torch.nn.Module, configuration: RunConfiguration, precision: str, world: World):
        import accelerate

        self.world, self.precision = world, precision
        self._feed = Feed(world.device)
        self._allowed = configuration.run.allow_changes
        mixed = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}[precision]
        # Accelerate wants OMP_NUM_THREADS set; torch's own number is right for a single process.
        warnings.filterwarnings("ignore", message="OMP_NUM_THREADS/MKL_NUM_THREADS unset", module="accelerate")
        # Many encoders of transformers have a pooler that masked language modelling does not use.
        spare = accelerate.DistributedDataParallelKwargs(find_unused_parameters=_has_spare_parameters(model))
        # Of a run before this one in the process, whose precision it would insist on.
        accelerate.state.AcceleratorState._reset_state()
        self._accelerator = accelerate.Accelerator(
            mixed_precision=mixed, cpu=world.device.type == "cpu", kwargs_handlers=[spare]
        )
        optimizer = make_guarded_optimizer(parameter_groups(model, configuration.optim), configuration.optim, precision)
        self.layout = elastic.Layout(None, world.size, precision, is_fused(optimizer), "fp32")
        # Alone there is nothing to reduce: no DDP.
        self.module = self._accelerator.prepare_model(model, evaluation_mode=world.size == 1)
        self._optimizer, self.guard = optimizer, optimizer.guard
        # In fp16 the host must know before the next step, which has another loss scale after an overflow.
        optimizer.decides_on_device = world.device.type == "cuda" and precision != "fp16"
        self.scaler = torch.amp.GradScaler(world.device.type) if precision == "fp16" else None

    def forward_backward(
        self, micro_batches: list[Batch], forward: Forward, following: Batch | None = None
    ) -> torch.Tensor:
        total = None
        for index, batch in enumerate(self._feed.on_device(micro_batches, following)):
            is_last = index == len(micro_batches) - 1
            with self._accelerator.no_sync(self.module) if not is_last else contextlib.nullcontext():
                loss, sums = forward(self.module, batch)
                # DDP averages over the ranks; the loss is already a share of the global mean.
                loss = spread_non_finite(loss) * self.world.size
                (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = sums if total is None else total + sums
        return total

    def step(self, learning_rate: float) -> StepResult:
        self.guard.dropped = False
        set_learning_rate(self._optimizer, learning_rate)
        if self.scaler:
            self.scaler.unscale_(self._optimizer)
        self._optimizer.step()
        if self.scaler:
            self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        overflow, norm = self._optimizer.overflow, self._optimizer._global_grad_norm
        if isinstance(overflow, torch.Tensor):
            return StepResult(Later(~overflow), torch.where(overflow, math.inf, norm))
        is_finite, judged = not overflow, self.guard.dropped
        norm = norm if is_finite else math.inf
        return StepResult(is_finite and not judged, norm, self.scaler.get_scale() if self.scaler else 1.0, judged)

    @contextlib.contextmanager
    def rehearsing(self, micro_batches: int) -> Iterator[None]:
        scale = copy.deepcopy(self.scaler.state_dict()) if self.scaler else None
        yield
        if self.scaler:
            self.scaler.load_state_dict(scale)

    def collect(self, folder: Path) -> dict[str, Any]:
        # Model, optimizer and loss scale are equal on all ranks: rank 0 alone gives them.
        common = common_files(self.layout, self.world)
        if not self.world.is_first:
            return common
        state = {
            "model": self._bare().state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }
        return {**state_files.as_files(state), **common}

    def load(self, folder: Path) -> None:
        settings = elastic.keeping_settings(self._optimizer, has_other_precision=False)
        loadable = elastic.loadable(folder, self.layout, self.world, set(), self._allowed)
        with loadable as source, loading(folder), settings:
            state = state_files.read(folder)
            self._bare().load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self.scaler and source.saved.precision == self.precision:
                self.scaler.load_state_dict(state["scaler"])
        self.layout = elastic.go_on_as(source.saved, self.layout, self._optimizer)
        refuse_not_finite(folder, self._bare(), self._optimizer)
        random_state.restore(folder, self.world)

    def gather(self) -> dict[str, torch.Tensor]:
        if not self.world.is_first:
            return {}
        return {name: value.detach().cpu() for name, value in self._bare().state_dict().items()}

    def _bare(self) -> torch.nn.Module:
        return self._accelerator.unwrap_model(self.module)


def _has_spare_parameters(model: torch.nn.Module) -> bool:
    """Whether some parameters may get no gradient: only our own models are known to use all of theirs."""
    return not type(model).__module__.startswith("longmix.")
