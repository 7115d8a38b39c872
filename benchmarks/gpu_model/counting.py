"""What code launches on a GPU, counted while it runs on tensors of the meta device: nothing is computed."""

import contextlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.kernels import selection

from .cards import Launch
from .library import launch_of
from .softmax import SoftmaxStandIn
from .triton_work import work_of

DEVICE = "meta"


class Launches(Counter):
    """How often each Launch has been made; `record` adds one."""

    def record(self, launch: Launch) -> None:
        """Count a launch."""
        self[launch] += 1


class _Operators(TorchDispatchMode):
    """Records what is dispatched; our own operators run their kernels, which are dispatched in turn."""

    def __init__(self, launches: Launches):
        super().__init__()
        self.launches = launches

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace == "longmix":
            # Under meta tensors torch would run the declaration, which makes the results and nothing else.
            with self:
                return OPDEFS[function._schema.name]._init_fn(*args, **kwargs)
        with self:
            # Inside our own operators, where autograd is out of the way, composite ones arrive whole.
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = function(*args, **kwargs)
        launch = launch_of(function, args, kwargs, result)
        if launch is not None:
            self.launches.record(launch)
        return result


@contextlib.contextmanager
def counting(triton: bool, flash: bool = True, documents: list[int] | None = None) -> Iterator[Launches]:
    """What is launched in this context by code on meta tensors, forward and backward.

    The code takes the branches that it takes on a GPU, with the implementation of each operation that is named here;
    softmax attention is PyTorch's kernel for GPUs. All stand-ins end with the context.

    Args:
        triton: operations run their Triton kernels where they have some; else plain PyTorch.
        flash: on A100, where softmax attention is FlashAttention-2 where it can be; else on V100, where it is
            memory-efficient attention.
        documents: lengths of the batch's documents; None: each sample is one.
    """
    launches = Launches()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(selection, "implementation", _taken_on_gpus if triton else _portable))
        stack.enter_context(mock.patch.object(torch, "autocast", _NoAutocast))
        if triton:
            stack.enter_context(_recorded_kernels(launches, documents, 80 if flash else 70))
        stack.enter_context(_Operators(launches))
        stack.enter_context(SoftmaxStandIn(launches.record, flash))
        yield launches


def _portable(operation: str, device: torch.device) -> str:
    return "portable"


def _taken_on_gpus(operation: str, device: torch.device) -> str:
    module = f"longmix.kernels.{selection.folder_of(operation)}.gpu_kernels"
    return "portable" if importlib.util.find_spec(module) is None else "triton"


class _NoAutocast(contextlib.nullcontext):
    """torch.autocast, which knows no meta device; it is only ever switched off."""

    def __init__(self, device_type: str, enabled: bool = True):
        if enabled:
            raise ValueError("autocast is switched on; the model of GPUs counts without it")
        super().__init__()


@contextlib.contextmanager
def _recorded_kernels(launches: Launches, documents: list[int] | None, capability: int) -> Iterator[None]:
    from triton.runtime.jit import KernelInterface

    from .targets import targeted

    def launcher(kernel: KernelInterface, grid: tuple[int, ...] | Callable) -> Callable[..., None]:
        def launch(*args: object, **kwargs: object) -> None:
            arguments = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
            programs = tuple(grid(arguments) if callable(grid) else grid)
            name = kernel.fn.__name__
            size, operations, unit = work_of(name, arguments, programs, documents, capability)
            launches.record(Launch(f"triton {name}", 1, size, operations, unit, prod(programs)))

        return launch

    with mock.patch.object(KernelInterface, "__getitem__", launcher), targeted(capability):
        yield
