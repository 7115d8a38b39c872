"""Two small engines with the same five methods: forward_backward, step, collect, load, gather.

DeepSpeedEngine drives ZeRO 0-3; AccelerateEngine one device or DDP. The loop cannot tell them apart.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.errors import UserError

from ..checkpoints.hashed_files import Collector
from ..optimization.optimizer import GuardedAdamW, StepGuard, ask_before_steps, make_adamw, parameter_groups
from ..processes.world import World, agree
from ..settings import deepspeed_file
from ..settings.configuration import RunConfiguration
from . import elastic, random_state, state_files
from .load_checks import loading, refuse_not_finite

# forward(model, micro-batch on the device) -> (loss over the global batch's items, sums of statistics)
Forward = Callable[[torch.nn.Module, dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class StepResult:
    """One optimizer step: whether it was taken, and the global gradient norm before clipping."""

    applied: bool
    gradient_norm: float
    loss_scale: float = 1.0
    judged: bool = False  # dropped by the guard's judge


def make_engine(
    model: torch.nn.Module, configuration: RunConfiguration, precision: str, world: World
) -> "DeepSpeedEngine | AccelerateEngine":
    if configuration.deepspeed is None:
        return AccelerateEngine(model, configuration, precision, world)
    return DeepSpeedEngine(model, configuration, precision, world)


def to_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def _spread_non_finite(loss: torch.Tensor) -> torch.Tensor:
    """The loss, or NaN gradients everywhere if it is not finite: so gradients alone decide about the step, on the
    device and without waiting for it."""
    return loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan)


class DeepSpeedEngine:
    """ZeRO stages 0 to 3 over DeepSpeed's own engine."""

    def __init__(self, model: torch.nn.Module, configuration: RunConfiguration, precision: str, world: World):
        deepspeed = _import_deepspeed(world)
        from pydantic import ValidationError  # what DeepSpeed checks its file with

        parameters = sum(parameter.numel() for parameter in model.parameters())
        values = deepspeed_file.fill(configuration, precision, world.size, parameters)
        self.stage = deepspeed_file.stage_of(values)
        self.world, self.precision = world, precision
        self.layout = elastic.Layout(self.stage, world.size, precision)
        self._allowed = configuration.run.allow_changes
        groups = parameter_groups(model, configuration.optim)
        optimizer = None
        if "optimizer" not in values:
            if self.stage == 0 and precision == "fp32":
                values["gradient_clipping"] = 0.0
                optimizer = make_adamw(
                    groups, configuration.optim, GuardedAdamW, grad_clip=configuration.optim.grad_clip
                )
            else:
                optimizer = make_adamw(groups, configuration.optim)
        takes_a_step = self.stage == 0 and precision != "fp32" and optimizer is not None
        if takes_a_step:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        try:
            self.module, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, model_parameters=None if optimizer else groups, config=values
            )
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise UserError(f"deepspeed: {configuration.deepspeed} holds what DeepSpeed refuses: {found}") from None
        self.module.checkpoint_engine = Collector()
        # DeepSpeed's scripts that unpickle a checkpoint: `longmix export` makes its model from safetensors.
        self.module._copy_recovery_script = lambda folder: None
        if takes_a_step:
            # To allocate its moments, DeepSpeed has taken a step with zero gradients: it must not count in Adam's
            # correction of their bias. The rate of 0 kept it from decaying weights; every step sets its own.
            optimizer.state.clear()
        if isinstance(self.module.optimizer, GuardedAdamW):
            self.guard = self.module.optimizer.guard
        else:
            self.guard = StepGuard()
            ask_before_steps(self.module.basic_optimizer, lambda: self.guard.drops(self._gradient_norm()))

    def forward_backward(self, micro_batches: list[dict[str, torch.Tensor]], forward: Forward) -> torch.Tensor:
        """Accumulate gradients over the micro-batches; the summed statistics."""
        total = None
        for index, batch in enumerate(micro_batches):
            loss, sums = forward(self.module, to_device(batch, self.world.device))
            # DeepSpeed averages over the ranks; the loss is already a share of the global mean.
            self.module.backward(_spread_non_finite(loss) * self.world.size, scale_wrt_gas=False)
            total = sums if total is None else total + sums
            if index < len(micro_batches) - 1:
                self.module.step()
        return total

    def step(self, learning_rate: float) -> StepResult:
        """Take the optimizer step, or drop it on every rank if the gradients are not finite or the guard says so."""
        self.guard.dropped = False
        for group in self.module.optimizer.param_groups:
            group["lr"] = learning_rate
        self.module.step()
        scale = getattr(self.module.optimizer, "cur_scale", None) or getattr(self.module.optimizer, "loss_scale", 1.0)
        is_finite, judged = bool(self.module.was_step_applied()), self.guard.dropped
        norm = self._gradient_norm() if is_finite else math.inf
        return StepResult(is_finite and not judged, norm, float(scale), judged)

    def _gradient_norm(self) -> float:
        """Of the step that is being made or was made last: before clipping, without the loss scale."""
        norm = float(self.module.optimizer._global_grad_norm)
        # At stage 0 alone DeepSpeed gives it with the scale.
        return norm / self.module.optimizer.loss_scale if self.precision == "fp16" and self.stage == 0 else norm

    def collect(self, folder: Path) -> dict[str, Any]:
        """What this rank must write below `folder` to go on from here, by file name; nothing is written yet.

        The values are the engine's own: they change with the next step. Every rank must call it.
        """
        # Conversion to another number of ranks (ds_to_universal) asks for this entry at stages 1 and 2.
        state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
        self.module.save_checkpoint(str(folder), tag=elastic.ENGINE, client_state=state, save_latest=False)
        return {**self.module.checkpoint_engine.take(folder), **_common_files(self.layout, self.world)}

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Every rank must call it. Raises UserError if it is of no use to this run."""
        names = set(self.module.module.state_dict())
        with elastic.loadable(folder, self.layout, self.world, names, self._allowed) as source, loading(folder):
            agree(self.world, lambda: self._load(source))
        refuse_not_finite(folder, self.module.module, self.module.basic_optimizer)
        random_state.restore(folder, self.world)

    def _load(self, source: elastic.Source) -> None:
        self.module._config.load_universal_checkpoint = source.is_converted
        with elastic.keeping_settings(self.module.optimizer, source.saved.precision != self.precision):
            found, _ = self.module.load_checkpoint(str(source.folder), tag=elastic.ENGINE)
        if found is None:
            raise UserError(f"{source.folder}: DeepSpeed finds no state that it can load there")
        if source.is_converted:
            elastic.separate_steps(self.module.optimizer.optimizer)
            elastic.load_buffers(self.module.module, source.folder)

    def gather(self) -> dict[str, torch.Tensor]:
        """The whole model in fp32 on the CPU of rank 0; an empty map elsewhere. Every rank must call it."""
        bare = self.module.module
        state = {}
        for name, parameter in bare.named_parameters():
            full = self._full(parameter)
            if self.world.is_first:
                state[name] = full.detach().float().cpu()
        if not self.world.is_first:
            return {}
        # Tied parameters have several names and one tensor.
        first_names = {id(parameter): name for name, parameter in bare.named_parameters()}
        for name, parameter in bare.named_parameters(remove_duplicate=False):
            state[name] = state[first_names[id(parameter)]]
        for name, buffer in bare.named_buffers(remove_duplicate=False):
            state[name] = buffer.detach().cpu()
        return state

    def _full(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The fp32 master of a parameter, whole."""
        if self.stage == 0:
            return self._masters.get(id(parameter), parameter)
        if not parameter.requires_grad:
            return self._gathered(parameter)
        from deepspeed.utils import safe_get_full_fp32_param

        return safe_get_full_fp32_param(parameter)

    def _gathered(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        if self.stage < 3:
            return parameter
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    @property
    def _masters(self) -> dict[int, torch.Tensor]:
        """id of a 16-bit parameter -> its fp32 master, at stage 0."""
        optimizer = self.module.optimizer
        if not hasattr(optimizer, "fp16_groups"):
            return {}
        return {
            id(low): high
            for lows, highs in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
            for low, high in zip(lows, highs, strict=True)
        }


class AccelerateEngine:
    """One device, or DDP, over Accelerate."""

    def __init__(self, model: torch.nn.Module, configuration: RunConfiguration, precision: str, world: World):
        import accelerate

        self.world, self.precision = world, precision
        self.layout = elastic.Layout(None, world.size, precision)
        self._allowed = configuration.run.allow_changes
        mixed = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}[precision]
        # Accelerate wants OMP_NUM_THREADS set; torch's own number is right for a lone process.
        warnings.filterwarnings("ignore", message="OMP_NUM_THREADS/MKL_NUM_THREADS unset", module="accelerate")
        # Many encoders of transformers have a pooler that masked language modelling does not use.
        spare = accelerate.DistributedDataParallelKwargs(find_unused_parameters=_has_spare_parameters(model))
        self._accelerator = accelerate.Accelerator(
            mixed_precision=mixed, cpu=world.device.type == "cpu", kwargs_handlers=[spare]
        )
        optimizer = make_adamw(
            parameter_groups(model, configuration.optim),
            configuration.optim,
            GuardedAdamW,
            grad_clip=configuration.optim.grad_clip,
        )
        # Alone there is nothing to reduce: no DDP.
        self.module = self._accelerator.prepare_model(model, evaluation_mode=world.size == 1)
        self._optimizer, self.guard = optimizer, optimizer.guard
        self.scaler = torch.amp.GradScaler(world.device.type) if precision == "fp16" else None

    def forward_backward(self, micro_batches: list[dict[str, torch.Tensor]], forward: Forward) -> torch.Tensor:
        """Accumulate gradients over the micro-batches; the summed statistics."""
        total = None
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with self._accelerator.no_sync(self.module) if not is_last else contextlib.nullcontext():
                loss, sums = forward(self.module, to_device(batch, self.world.device))
                # DDP averages over the ranks; the loss is already a share of the global mean.
                loss = _spread_non_finite(loss) * self.world.size
                (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = sums if total is None else total + sums
        return total

    def step(self, learning_rate: float) -> StepResult:
        """As DeepSpeedEngine.step."""
        self.guard.dropped = False
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self.scaler:
            self.scaler.unscale_(self._optimizer)
        self._optimizer.step()
        if self.scaler:
            self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        is_finite, judged = not self._optimizer.overflow, self.guard.dropped
        norm = self._optimizer._global_grad_norm if is_finite else math.inf
        return StepResult(is_finite and not judged, norm, self.scaler.get_scale() if self.scaler else 1.0, judged)

    def collect(self, folder: Path) -> dict[str, Any]:
        """As DeepSpeedEngine.collect: model, optimizer and loss scale (rank 0), and every rank's random state."""
        common = _common_files(self.layout, self.world)
        if not self.world.is_first:
            return common
        state = {
            "model": self._bare().state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }
        return {**state_files.as_files(state), **common}

    def load(self, folder: Path) -> None:
        """As DeepSpeedEngine.load."""
        settings = elastic.keeping_settings(self._optimizer, has_other_precision=False)
        loadable = elastic.loadable(folder, self.layout, self.world, set(), self._allowed)
        with loadable as source, loading(folder), settings:
            state = state_files.read(folder)
            self._bare().load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self.scaler and source.saved.precision == self.precision:
                self.scaler.load_state_dict(state["scaler"])
        refuse_not_finite(folder, self._bare(), self._optimizer)
        random_state.restore(folder, self.world)

    def gather(self) -> dict[str, torch.Tensor]:
        """The whole model on the CPU of rank 0; an empty map elsewhere."""
        if not self.world.is_first:
            return {}
        return {name: value.detach().cpu() for name, value in self._bare().state_dict().items()}

    def _bare(self) -> torch.nn.Module:
        return self._accelerator.unwrap_model(self.module)


def _has_spare_parameters(model: torch.nn.Module) -> bool:
    """Whether some parameters may get no gradient: only our own models are known to use all of theirs."""
    return not type(model).__module__.startswith("longmix.")


def _import_deepspeed(world: World):
    # DeepSpeed loads its files with weights_only=False; this makes torch refuse everything but the names below.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    # DeepSpeed calls names that torch is about to rename; nothing for a user to act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    import deepspeed
    from deepspeed.ops import __compatible_ops__
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils import logger
    from deepspeed.utils.tensor_fragment import fragment_address

    torch.serialization.add_safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address])
    # Would compile a kernel for more than a minute that only inference uses.
    __compatible_ops__["deepspeed_shm_comm"] = False
    logger.setLevel("WARNING" if world.is_first else "ERROR")
    deepspeed.init_distributed(dist_backend="nccl" if world.device.type == "cuda" else "gloo", verbose=False)
    return deepspeed


def _common_files(layout: elastic.Layout, world: World) -> dict[str, Any]:
    """What both engines give to a checkpoint, by file name."""
    return {**({elastic.LAYOUT: layout.to_dict()} if world.is_first else {}), **random_state.collect(world)}
