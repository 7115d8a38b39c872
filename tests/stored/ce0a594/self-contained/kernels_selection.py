# Part of longmix 0.1.0, longmix.kernels.selection. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Which implementation of an operation runs.

| name | what it is | where |
|---|---|---|
| reference | the equations, in float64 | everywhere |
| portable | fast plain PyTorch | everywhere |
| cpu | C++, compiled at the first use | CPU, with a C++ compiler |
| triton | Triton | GPU; CPU under Triton's interpreter (TRITON_INTERPRET=1) |

`auto` takes cpu on a CPU, and portable where it cannot run and on a GPU: the Triton kernels have run under Triton's
interpreter alone so far. The environment variable LONGMIX_KERNELS overrides it with one of the names.
"""

import functools
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

import torch

from .kernels_interpreter import interpreted

ENVIRONMENT_VARIABLE = "LONGMIX_KERNELS"
CHOICES = ("auto", "reference", "portable", "cpu", "triton")
# Operation -> its folder.
OPERATIONS = {
    "feature_attention": "feature_attention",
    "givens_mix": "givens_mix",
    "lifting_analysis": "lifting",
    "lifting_synthesis": "lifting",
    "linear_attention": "linear_attention",
    "link_mix": "link_mix",
    "spectral_filter": "spectral_filter",
    "wavelet_analysis": "wavelet",
    "wavelet_synthesis": "wavelet",
}
# Implementation -> its module in the operation's folder.
_MODULES = {"cpu": "cpu", "triton": "gpu"}


def implementation(operation: str, device: torch.device | str) -> str:
    """Name of the implementation that `operation` runs on `device`.

    Raises:
        ValueError: unknown operation; LONGMIX_KERNELS has a value that is not one of `CHOICES`, or names an
            implementation that cannot run, with the reason.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r} is unknown; allowed: {', '.join(OPERATIONS)}")
    kind = torch.device(device).type
    choice = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if choice not in CHOICES:
        raise ValueError(f"{ENVIRONMENT_VARIABLE} is {choice!r}; allowed: {', '.join(CHOICES)}")
    if choice in _MODULES:
        reason = obstacle(operation, choice, kind)
        if reason is not None:
            raise ValueError(f"{ENVIRONMENT_VARIABLE} is {choice!r}, but {operation} cannot run so: {reason}")
        return choice
    if choice != "auto":
        return choice
    return "cpu" if obstacle(operation, "cpu", kind) is None else "portable"


@torch.compiler.assume_constant_result  # torch.compile does not look into imports and builds
def obstacle(operation: str, name: str, kind: str) -> str | None:
    """Why implementation `name`, cpu or triton, cannot run `operation` on a device of a kind; None if it can."""
    return _obstacle(operation, name, kind)


@functools.cache
def _obstacle(operation: str, name: str, kind: str) -> str | None:
    module = f"longmix.kernels.{OPERATIONS[operation]}.{_MODULES[name]}"
    try:
        if importlib.util.find_spec(module) is None:
            return f"it has no {name} implementation"
    except ModuleNotFoundError:
        return "longmix is not installed"
    if name == "triton":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if kind != "cuda" and not interpreted():
            return f"triton needs a GPU, not {kind}, or its interpreter (TRITON_INTERPRET=1)"
        return None
    if kind != "cpu":
        return f"it is for the CPU, not for {kind}"
    # Not as a statement: code that stands alone, without longmix, then does without the builder too.
    build = importlib.import_module("longmix.kernels.build")

    try:
        importlib.import_module(module).load()
    except build.BuildError as error:
        _warn_once(str(error))
        return str(error)
    return None


_warned: list[str] = []


def _warn_once(reason: str) -> None:
    """What keeps one operation from its C++ keeps the others from theirs, as a rule."""
    if not _warned:
        _warned.append(reason)
        warnings.warn(f"{reason}; plain PyTorch runs in place of the C++ kernels", stacklevel=4)


def select(operation: str, device: torch.device, implementations: dict[str, Callable]) -> Callable:
    """What `operation` runs on `device`: one of `implementations`, by name, or the operator of hand-written kernels."""
    name = implementation(operation, device)
    if name in _MODULES:
        return getattr(sys.modules[_import(f"{OPERATIONS[operation]}.operator")], operation)
    return implementations[name]


def kernels(operation: str, device: torch.device) -> ModuleType:
    """The module, cpu.py or gpu.py of the operation's folder, whose functions compute on `device`."""
    name = implementation(operation, device)
    if name not in _MODULES:
        # The operator was chosen before LONGMIX_KERNELS changed, or in a compiled graph: take what can run.
        name = "triton" if device.type == "cuda" else "cpu"
    return importlib.import_module(f"longmix.kernels.{OPERATIONS[operation]}.{_MODULES[name]}")


@torch.compiler.assume_constant_result
def _import(module: str) -> str:
    """The full name of a module of this folder, once it is imported."""
    return importlib.import_module(f"longmix.kernels.{module}").__name__
