"""Optimizers with parameter groups, and the guards that drop a step once its gradient norm is known."""

import math
from collections import defaultdict
from collections.abc import Callable
from pkgutil import resolve_name

import torch

from longmix.data_prep.errors import UserError

from ..settings.optimizers import OPTIMIZERS
from ..settings.sections import OptimSection
from .matrices import matrix_views

# Making one: which parameters decay, and which class the row of settings/optimizers.py names.


def parameter_groups(model: torch.nn.Module, optim: OptimSection) -> list[dict]:
    """Trainable parameters in groups: with weight decay, and without for names that contain a word of `no_decay`.

    `norm` also stands for the weights of normalisation layers whatever their names; so do all vectors and scalars of
    such layers. The comparison ignores case. Our models name parameters of their own (`no_weight_decay`), such as the
    taps of a wavelet.

    For an optimizer that moves matrices otherwise, the matrices of the layers follow in groups of their own. A group's
    `matrices` are their views, and empty for other parameters.

    What `lr_factors` gives a rate of its own has groups with an `lr_factor`. Raises UserError as `rate_factors` does.
    """
    words = [word.lower() for word in optim.no_decay]
    own = getattr(model, "no_weight_decay", ())
    of_norms = {
        id(parameter)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for parameter in module.parameters(recurse=False)
    }
    splits = OPTIMIZERS[optim.name].state_per_matrix_entry is not None
    views = matrix_views(model) if splits else {}
    factors = rate_factors(model, optim.lr_factors)
    sorted_out = defaultdict(list)  # by (is a matrix, is spared, factor)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        without = (
            any(word in name.lower() for word in words)
            or any(part in name for part in own)
            or ("norm" in words and id(parameter) in of_norms)
        )
        sorted_out[id(parameter) in views, without, factors.get(name, 1.0)].append(parameter)
    groups = []
    for (is_matrix, without, factor), parameters in sorted(sorted_out.items(), key=lambda item: item[0]):
        group = {"params": parameters, "weight_decay": 0.0 if without else optim.weight_decay}
        if factor != 1.0:
            group["lr_factor"] = factor
        if splits:
            group["matrices"] = [views[id(parameter)] for parameter in parameters] if is_matrix else []
        groups.append(group)
    return groups


def rate_factors(model: torch.nn.Module, given: dict[str, float]) -> dict[str, float]:
    """The factors of `optim.lr_factors` by the names of parameters: of several words in a name the longest counts.

    Raises:
        UserError: a word is in the name of no parameter.
    """
    factors, words = {}, sorted(given, key=len)
    unused = set(words)
    for name, _ in model.named_parameters():
        for word in words:
            if word in name:
                factors[name] = given[word]
                unused.discard(word)
    if unused:
        names = [name for name, _ in model.named_parameters()]
        raise UserError(
            f"optim.lr_factors: {min(unused)!r} stands in no parameter's name, such as {names[0]} or {names[-1]}"
        )
    return factors


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group of parameters its rate for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_factor", 1.0)


def make_optimizer(groups: list[dict], optim: OptimSection, precision: str) -> torch.optim.Optimizer:
    """The optimizer of a run file as its library has it: for DeepSpeed's own, which clips (see `ask_before_steps`)."""
    row = OPTIMIZERS[optim.name]
    return resolve_name(row.plain)(groups, **_arguments(optim, precision))


def make_guarded_optimizer(groups: list[dict], optim: OptimSection, precision: str) -> "GuardedOptimizer":
    """The optimizer of a run file as one that clips and guards its steps itself."""
    row = OPTIMIZERS[optim.name]
    return resolve_name(row.guarded)(groups, grad_clip=optim.grad_clip, **_arguments(optim, precision))


def _arguments(optim: OptimSection, precision: str) -> dict:
    row = OPTIMIZERS[optim.name]
    values = {key: getattr(optim, key) for key in ("lr", *row.arguments)}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if row.takes_precision:
        values["precision"] = precision
    return {**values, "fused": True} if row.has_fused else values


# Fused steps round otherwise in the last bit than the others: a run goes on with those that it was begun with.


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch takes the optimizer's steps in one pass over memory."""
    return any(group.get("fused") for group in optimizer.param_groups)


def set_fused(optimizer: torch.optim.Optimizer, fused: bool) -> None:
    """Let an optimizer of torch's that knows both ways step in one of them from here on, with the state that it has."""
    groups = [group for group in optimizer.param_groups if "fused" in group]
    if not groups:
        return  # none of torch's
    for group in groups:
        group["fused"] = True if fused else None  # torch chooses among the others
    # Not by the groups' parameters: at stage 3 of DeepSpeed they have none between two steps.
    for parameter, state in optimizer.state.items():
        if "step" in state:
            # Fused steps count on the parameter's device, the others on the host.
            state["step"] = state["step"].to(parameter.device if fused else "cpu")


# Guarding its steps: a run that spikes, or whose gradients are not finite, must not change its weights.


# More than what torch adds to a norm before it compares.
_CLIP_MARGIN = 1e-5


class StepGuard:
    """Decides whether a step is taken when its gradient norm is known and nothing has changed yet.

    Attributes:
        judge: called with the norm, says whether to drop the step; None drops none. Every rank must say the same.
        dropped: whether `judge` has dropped the last step.
    """

    def __init__(self) -> None:
        self.judge: Callable[[float], bool] | None = None
        self.dropped = False

    def drops(self, norm: float | torch.Tensor) -> bool:
        self.dropped = self.judge is not None and self.judge(float(norm))
        return self.dropped


def ask_before_steps(optimizer: torch.optim.Optimizer, drops: Callable[[], bool]) -> None:
    """Let `optimizer.step()` ask first, and do nothing if `drops` says so.

    For the optimizer inside DeepSpeed's, whichever it is: it is called when the norm is known on all ranks, for every
    group of parameters anew.
    """
    take_step = optimizer.step

    def step(*arguments, **options):
        return None if drops() else take_step(*arguments, **options)

    optimizer.step = step


class GuardedOptimizer(torch.optim.Optimizer):
    """Mixin before an optimizer of torch: it measures the gradient norm, clips, and does nothing when the norm is not
    finite or its guard says so.

    For engines that hold whole gradients, equal on every rank (Accelerate's, and DeepSpeed's stage 0 in fp32, which
    would take a NaN step).

    Attributes:
        drops_on_device: whether all that a step of the class changes stays as it is where `found_inf` is 1.
        decides_on_device: whether a step that is not finite may be dropped by the device, of which the host need not
            know: what follows are tensors there after such a step.
        overflow: whether the last step was dropped because its norm was not finite. DeepSpeed reads this name.
        _global_grad_norm: norm of the last gradients before clipping. DeepSpeed reads this name.
    """

    drops_on_device = False

    def __init__(self, groups: list[dict], grad_clip: float | None, **arguments):
        super().__init__(groups, **arguments)
        self.grad_clip = grad_clip
        self.guard = StepGuard()
        self.decides_on_device = False
        self.overflow: bool | torch.Tensor = False
        self._global_grad_norm: float | torch.Tensor = 0.0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        assert closure is None
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._asks_device_alone():
            self._global_grad_norm, self.overflow = norm, ~torch.isfinite(norm)
            if self.grad_clip is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.grad_clip, norm)
            self.found_inf = self.overflow.float()  # where it is 1, torch's fused steps change nothing
            super().step()
            self.found_inf = None
            return
        self._global_grad_norm = norm.item()
        self.overflow = not math.isfinite(self._global_grad_norm)
        if self.overflow or self.guard.drops(self._global_grad_norm):
            return
        # Far below the bound, torch would go through all gradients to multiply them by 1.
        if self.grad_clip is not None and self._global_grad_norm + _CLIP_MARGIN > 0.99 * self.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.grad_clip, norm)
        super().step()

    def _asks_device_alone(self) -> bool:
        """Whether the device drops a step by itself: torch's fused ones can, a judge is the host's, and the first step
        must make no moments if it is dropped."""
        can_drop = self.drops_on_device and is_fused(self)
        return self.decides_on_device and self.guard.judge is None and can_drop and len(self.state) > 0
