"""The engine over DeepSpeed: ZeRO stages 0 to 3."""

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.errors import UserError, reason_of

from ..optimization.muon import Muon
from ..optimization.optimizer import (
    GuardedOptimizer,
    StepGuard,
    ask_before_steps,
    is_fused,
    make_guarded_optimizer,
    make_optimizer,
    parameter_groups,
    set_learning_rate,
)
from ..processes.precision import DTYPES
from ..processes.world import World, agree, is_lost_rank
from ..samples.collate import Batch
from ..settings import deepspeed_file
from ..settings.configuration import SHIPPED_DEEPSPEED, RunConfiguration
from . import elastic, random_state
from .base import Forward, StepResult, common_files, spread_non_finite
from .collector import Collector
from .feeding import Feed
from .load_checks import loading, refuse_not_finite
from .zero_shares import cast_shares, gathered_masters, shares_of


class DeepSpeedEngine:
    """An `Engine` at ZeRO stage 0 to 3, over DeepSpeed's own engine."""

    def __init__(
        self,
        model: torch.nn.Module,
        configuration: RunConfiguration,
        precision: str,
        gradients: str,
        world: World,
    ):
        deepspeed = import_deepspeed(world)
        # A model that was built in shares has no numbers at hand, but says how many there are.
        parameters = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
        values = deepspeed_file.fill(configuration, precision, world.size, parameters, gradients)
        self.stage = deepspeed_file.stage_of(values)
        self.world, self.precision = world, precision
        self._feed = Feed(world.device)
        self._allowed = configuration.run.allow_changes
        groups = parameter_groups(model, configuration.optim)
        views = {
            id(one): view
            for group in groups
            if group.get("matrices")
            for one, view in zip(group["params"], group["matrices"], strict=True)
        }
        optimizer = None
        if "optimizer" not in values:
            if self.stage == 0 and precision == "fp32":
                values["gradient_clipping"] = 0.0
                optimizer = make_guarded_optimizer(groups, configuration.optim, precision)
            else:
                optimizer = make_optimizer(groups, configuration.optim, precision)
        takes_a_step = self.stage == 0 and precision != "fp32" and optimizer is not None
        if takes_a_step:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        cast_shares(model, DTYPES[precision])
        # Of a model that was built in shares DeepSpeed moves nothing: its parameters are where they belong.
        for buffer in model.buffers():
            buffer.data = buffer.data.to(world.device)
        with naming_refusals(configuration.deepspeed), _one_optimizer_at_stages_1_and_2():
            self.module, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, model_parameters=None if optimizer else groups, config=values
            )
        drop_at_lowest_scale(self.module.optimizer)
        keep_while_reduced(self.module.optimizer)
        self._grow_scale = growing_later(self.module.optimizer)
        fused, gradients = is_fused(self.module.basic_optimizer), deepspeed_file.gradients_of(values, precision)
        self.layout = elastic.Layout(self.stage, world.size, precision, fused, gradients)
        self.module.checkpoint_engine = Collector()
        # DeepSpeed would add a script that unpickles the checkpoint: `longmix export` makes its model from safetensors.
        self.module._copy_recovery_script = lambda folder: None
        if takes_a_step:
            # To allocate its moments, DeepSpeed has taken a step with zero gradients: it must not count in Adam's
            # correction of their bias. The rate of 0 kept it from decaying weights; every step sets its own.
            optimizer.state.clear()
        if self.stage > 0 and isinstance(optimizer, Muon):
            optimizer.shares = shares_of(self.module.optimizer, self.stage, views, world, configuration.deepspeed)
        if isinstance(self.module.optimizer, GuardedOptimizer):
            self.guard = self.module.optimizer.guard
        else:
            self.guard = StepGuard()
            ask_before_steps(self.module.basic_optimizer, lambda: self.guard.drops(self._gradient_norm))

    def forward_backward(
        self, micro_batches: list[Batch], forward: Forward, following: Batch | None = None
    ) -> torch.Tensor:
        total = None
        for index, batch in enumerate(self._feed.on_device(micro_batches, following)):
            loss, sums = forward(self.module, batch)
            # DeepSpeed averages over the ranks; the loss is already a share of the global mean.
            loss = spread_non_finite(loss) * self.world.size
            # At stage 0 DeepSpeed (0.19) divides gradients by a scale that it has not multiplied the loss by.
            loss = loss * self.module.optimizer.loss_scale if self._has_fp16_without_zero else loss
            self.module.backward(loss, scale_wrt_gas=False)
            total = sums if total is None else total + sums
            if index < len(micro_batches) - 1:
                self.module.step()
        return total

    def step(self, learning_rate: float) -> StepResult:
        self.guard.dropped = False
        set_learning_rate(self.module.optimizer, learning_rate)
        self.module.step()
        norm = self._gradient_norm
        self._grow_scale()
        scale = getattr(self.module.optimizer, "cur_scale", None) or getattr(self.module.optimizer, "loss_scale", 1.0)
        is_finite, judged = bool(self.module.was_step_applied()), self.guard.dropped
        return StepResult(is_finite and not judged, norm if is_finite else math.inf, float(scale), judged)

    @contextlib.contextmanager
    def rehearsing(self, micro_batches: int) -> Iterator[None]:
        from deepspeed.utils import logger

        optimizer = self.module.optimizer
        noted = [
            (self.module, ("micro_steps", "global_steps", "global_samples", "skipped_steps", "_global_grad_norm")),
            (optimizer, ("overflow", "_global_grad_norm")),
        ]
        scalers = (getattr(optimizer, name, None) for name in ("loss_scaler", "loss_scale_config"))
        noted += [(scaler, tuple(vars(scaler))) for scaler in scalers if scaler is not None]
        values = [(owner, name, getattr(owner, name)) for owner, names in noted for name in names]
        rates = [group["lr"] for group in optimizer.param_groups]
        level = logger.level
        logger.setLevel("ERROR")  # it would warn of what is meant to be
        self.module.micro_steps = -micro_batches  # so that the last of them completes the step
        yield
        logger.setLevel(level)
        for owner, name, value in values:
            setattr(owner, name, value)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    @property
    def _gradient_norm(self) -> float | torch.Tensor:
        """The norm of the step in progress, or of the last one: before clipping, without the loss scale."""
        norm = self.module.optimizer._global_grad_norm
        # At stage 0 alone DeepSpeed gives it with the scale.
        return norm / self.module.optimizer.loss_scale if self._has_fp16_without_zero else norm

    @property
    def _has_fp16_without_zero(self) -> bool:
        return self.precision == "fp16" and self.stage == 0

    # Checkpoints: collected by our own checkpoint engine, loaded by DeepSpeed's code from files that were checked.

    def collect(self, folder: Path) -> dict[str, Any]:
        # Conversion to another number of ranks (ds_to_universal) asks for this entry at stages 1 and 2.
        state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
        self.module.save_checkpoint(str(folder), tag=elastic.ENGINE, client_state=state, save_latest=False)
        return {**self.module.checkpoint_engine.take(folder), **common_files(self.layout, self.world)}

    def load(self, folder: Path) -> None:
        names = set(self.module.module.state_dict())
        with elastic.loadable(folder, self.layout, self.world, names, self._allowed) as source, loading(folder):
            agree(self.world, lambda: self._load(source))
        refuse_not_finite(folder, self.module.module, self.module.basic_optimizer)
        random_state.restore(folder, self.world)

    def _load(self, source: elastic.Source) -> None:
        self.module._config.load_universal_checkpoint = source.is_converted
        with elastic.keeping_settings(self.module.optimizer, source.saved.precision != self.precision):
            found, _ = self.module.load_checkpoint(str(source.folder), tag=elastic.ENGINE)
        drop_at_lowest_scale(self.module.optimizer)  # its scaler is the checkpoint's
        if found is None:
            raise UserError(f"{source.folder}: DeepSpeed finds no state that it can load there")
        if source.is_converted:
            elastic.separate_steps(self.module.optimizer.optimizer)
            if isinstance(self.module.basic_optimizer, Muon):
                self.module.basic_optimizer.drop_second_moments()
            elastic.load_buffers(self.module.module, source.folder)
        self.layout = elastic.go_on_as(source.saved, self.layout, self.module.basic_optimizer)

    # The whole model in fp32. Where its masters are depends on the stage: beside each parameter, with its optimizer, or
    # in pieces on every rank.

    def gather(self) -> dict[str, torch.Tensor]:
        bare = self.module.module
        masters, state = {}, {}
        if self.stage == 3 or (self.stage > 0 and self.precision != "fp32"):
            masters = gathered_masters(self.module.optimizer, self.stage, self.world)
        elif self.stage == 0:
            masters = self._masters
        for name, parameter in bare.named_parameters():
            full = masters.get(id(parameter), parameter)
            if self.stage == 3 and not parameter.requires_grad:
                full = self._gathered(parameter)
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

    def _gathered(self, parameter: torch.nn.Parameter) -> torch.Tensor:
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


@contextlib.contextmanager
def naming_refusals(name: str) -> Iterator[None]:
    """Context in which what DeepSpeed refuses of the file `name` is a UserError that says so."""
    from pydantic import ValidationError  # what DeepSpeed checks its file with

    try:
        yield
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UserError(f"deepspeed: {name} holds what DeepSpeed refuses: {found}") from None
    except Exception as error:
        if name in SHIPPED_DEEPSPEED or isinstance(error, torch.OutOfMemoryError) or is_lost_rank(error):
            raise
        # Its own checks, and modules that it would need: errors of every kind, some without a text.
        keys = ", ".join(deepspeed_file.unusual_keys(deepspeed_file.read(name))[:5])
        raise UserError(
            f"deepspeed: DeepSpeed cannot do what {name} asks for{f' (with {keys})' if keys else ''}: "
            f"{type(error).__name__}: {reason_of(error)[:300]}"
        ) from error


@contextlib.contextmanager
def _one_optimizer_at_stages_1_and_2() -> Iterator[None]:
    """Context in which DeepSpeed takes its optimizer of stages 1 and 2 for bf16 with gradients in fp32, too.

    At stage 1 it would choose another one, which sums the gradients of all parameters up over the ranks at once and
    after the backward pass, and has another form of checkpoints. This one can do the same, share by share.
    """
    from deepspeed.runtime.engine import BFLOAT16, ZERO_OPTIMIZATION, DeepSpeedEngine

    choose = DeepSpeedEngine._do_optimizer_sanity_check

    def chosen(engine: Any, optimizer: torch.optim.Optimizer) -> str | None:
        kind = choose(engine, optimizer)
        return ZERO_OPTIMIZATION if kind == BFLOAT16 and engine.zero_optimization() else kind

    DeepSpeedEngine._do_optimizer_sanity_check = chosen
    try:
        yield
    finally:
        DeepSpeedEngine._do_optimizer_sanity_check = choose


def import_deepspeed(world: World):
    """The library, told what it must not do, with its process group; every rank must call it."""
    # DeepSpeed loads its files with weights_only=False; this makes torch refuse everything but the names below.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    # DeepSpeed calls names that torch is about to rename; nothing for a user to act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    import deepspeed
    from deepspeed.ops import __compatible_ops__
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS
    from deepspeed.utils import logger
    from deepspeed.utils.tensor_fragment import fragment_address

    torch.serialization.add_safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address])
    # It warns of other optimizers, and of subclasses, and refuses them.
    if Muon not in ZERO_SUPPORTED_OPTIMIZERS:
        ZERO_SUPPORTED_OPTIMIZERS.append(Muon)
    # Would compile a kernel for more than a minute that only inference uses.
    __compatible_ops__["deepspeed_shm_comm"] = False
    logger.setLevel("WARNING" if world.is_first else "ERROR")
    deepspeed.init_distributed(dist_backend="nccl" if world.device.type == "cuda" else "gloo", verbose=False)
    if world.device.type == "cuda":
        ask_torch_for_free_memory(deepspeed.get_accelerator())
        if world.size > 1:
            # The first exchange of all ranks says which GPU is whose: before one of DeepSpeed's barriers torch would
            # guess it from the rank, as if all nodes had as many GPUs, and a rank on each.
            torch.distributed.all_reduce(torch.zeros(1, device=world.device))
    return deepspeed


def ask_torch_for_free_memory(accelerator: Any) -> None:
    """Let DeepSpeed's stages 1 and 2 learn from torch how much of a GPU is free.

    Where NVML's module is installed they would ask that, by the numbers in CUDA_VISIBLE_DEVICES: it may hold the names
    of GPUs, or of parts of them (MIG), which they fail at.
    """
    accelerator.available_memory = lambda device=None: torch.cuda.mem_get_info(device)[0]


def drop_at_lowest_scale(optimizer: Any) -> None:
    """Let an overflow of fp16 at the lowest loss scale be a step that is dropped, as at any other.

    DeepSpeed would raise an error of its own, before the run comes to tell of so many dropped steps in a row.
    """
    scaler = getattr(optimizer, "loss_scaler", None)
    if hasattr(scaler, "raise_error_at_min_scale"):
        scaler.raise_error_at_min_scale = False


def keep_while_reduced(optimizer: Any) -> None:
    """Keep the memory of gradients that stages 1 and 2 of DeepSpeed sum up over the ranks until that is done.

    They do it on a stream of their own. What fits into their buckets is copied there. A gradient larger than a bucket,
    such as that of a large vocabulary's embeddings, is summed up where it is, and at stage 2 a rank that has no share
    of it lets go of it while the sum may still be ahead: the backward pass would write other gradients over it.
    """
    reduce, stream = (getattr(optimizer, name, None) for name in ("average_tensor", "reduction_stream"))

    def reduce_and_keep(gradients: torch.Tensor, dtype: torch.dtype) -> None:
        reduce(gradients, dtype)
        gradients.record_stream(stream)

    if reduce is not None and stream is not None:  # on a CPU there is none
        optimizer.average_tensor = reduce_and_keep


def growing_later(optimizer: Any) -> Callable[[], None]:
    """Keep the loss scale of fp16 as it is for the whole of a step, and return what lets it grow after one, if due.

    DeepSpeed lets it grow before it divides the gradients by it: every so often a step would have half of them.
    """
    update, due = getattr(optimizer, "_update_scale", None), []

    def update_later(has_overflow: bool = False) -> None:
        if has_overflow:
            update(True)
        else:
            due.append(None)

    def grow() -> None:
        if due:
            due.clear()
            update(False)

    if update is not None:
        optimizer._update_scale = update_later
    return grow
