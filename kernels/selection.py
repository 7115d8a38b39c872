"""The choice of the implementation that runs an operation.

| name | what it is | where |
|---|---|---|
| reference | the equations, in float64 | everywhere |
| portable | fast plain PyTorch | everywhere |
| cpu | C++, compiled at the first use | CPU, with a C++ compiler |
| triton | Triton | a GPU; a CPU under Triton's interpreter (TRITON_INTERPRET=1) |

`auto` takes cpu on a CPU, triton on a GPU on which the kernels have proved themselves (proving.py), and portable
everywhere else. The environment variable LONGMIX_KERNELS overrides it with one of the names, without a proof.
"""

import functools
import importlib
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from .common.choice import ENVIRONMENT_VARIABLE, asked_by_environment
from .common.interpreter import interpreted

# Operation of a mixer -> its folder.
OPERATIONS = {
    "feature_attention": "attention",
    "feature_map_attention": "feature_map_attention",
    "givens_mix": "givens_mix",
    "lifting_analysis": "lifting",
    "lifting_synthesis": "lifting",
    "linear_attention": "attention",
    "link_mix": "link_mix",
    "near_attention": "near_attention",
    "random_feature_attention": "random_attention",
    "spectral_filter": "spectral_filter",
    "token_givens_mix": "token_givens",
    "wavelet_analysis": "wavelet",
    "wavelet_synthesis": "wavelet",
}
# And those around the mixers.
AROUND_MIXERS = {"linear_cross_entropy": "linear_cross_entropy", "rotary_heads": "rotary_heads"}
# Implementation -> its module in the operation's folder. Model folders that earlier versions exported with their code
# look for others: for cpu.py and gpu.py, whose functions took other arguments, and for what is in the folder `rotary`,
# which for them has no kernels for GPUs. Where they find none they run their own plain PyTorch.
_MODULES = {"cpu": "cpu_kernels", "triton": "gpu_kernels"}
OLDEST_TRITON = "3.5"  # 3.4 has no triton.constexpr_function
GPU = "cuda"  # the kind of devices on which kernels prove themselves before they are chosen


def implementation(operation: str, device: torch.device | str, form: tuple | None = None) -> str:
    """Name of the implementation that `operation` runs on `device`.

    Args:
        form: of the call, as proof.py in the operation's folder makes it; None: that of a base model's calls. On a GPU
            it may have to be proved first, which takes seconds, or a minute where programs are compiled.

    Raises:
        ValueError: unknown operation; LONGMIX_KERNELS has a value that is not one of `CHOICES`, or names an
            implementation that cannot run, with the reason.
    """
    if operation not in OPERATIONS and operation not in AROUND_MIXERS:
        raise ValueError(f"operation {operation!r} is unknown; allowed: {', '.join([*OPERATIONS, *AROUND_MIXERS])}")
    name = _implementation(operation, device, form)
    _note(operation, name)
    return name


def _implementation(operation: str, device: torch.device | str, form: tuple | None) -> str:
    if _forced:
        return _forced[-1] if _has(operation, _forced[-1]) else "portable"
    kind = torch.device(device).type
    choice = asked()
    if choice == "triton" and operation in AROUND_MIXERS and not _has(operation, choice):
        return "portable"
    if choice in _MODULES:
        reason = obstacle(operation, choice, kind)
        if reason is not None:
            raise ValueError(f"{ENVIRONMENT_VARIABLE} is {choice!r}, but {operation} cannot run so: {reason}")
        return choice
    if choice != "auto":
        return choice
    if kind == GPU:
        return "triton" if may_prove(operation) and _is_proved(operation, torch.device(device), form) else "portable"
    return "cpu" if obstacle(operation, "cpu", kind) is None else "portable"


def asked() -> str:
    """One of CHOICES: what LONGMIX_KERNELS says, or the context that is open.

    Raises:
        ValueError: it says something else.
    """
    return _forced[-1] if _forced else asked_by_environment()


def folder_of(operation: str) -> str:
    """The folder of an operation."""
    return OPERATIONS[operation] if operation in OPERATIONS else AROUND_MIXERS[operation]


_chosen: dict[str, set[str]] = {}
_forced: list[str] = []  # an implementation for each context below that is open


def plain() -> AbstractContextManager[None]:
    """Context in which every operation runs plain PyTorch, whatever LONGMIX_KERNELS says: for those who count."""
    return _forcing("portable")


def as_on_gpus() -> AbstractContextManager[None]:
    """Context in which every operation is that of GPUs with proved kernels: for those who count on tensors without
    data, wherever they are and whether triton is installed or not."""
    return _forcing("triton")


def stands_for(device: torch.device) -> str:
    """The kind of a device; that of GPUs in the context of `as_on_gpus`."""
    return GPU if "triton" in _forced else device.type


@contextmanager
def _forcing(name: str) -> Iterator[None]:
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()


@functools.cache
def _has(operation: str, name: str) -> bool:
    """Whether an operation has an implementation of its own of that name."""
    if name not in _MODULES:
        return True
    try:
        return importlib.util.find_spec(f"longmix.kernels.{folder_of(operation)}.{_MODULES[name]}") is not None
    except ModuleNotFoundError:  # longmix is not installed
        return False


@torch.compiler.assume_constant_result  # noted when a call is compiled
def _note(operation: str, name: str) -> None:
    _chosen.setdefault(operation, set()).add(name)


@contextmanager
def noted_choices() -> Iterator[dict[str, set[str]]]:
    """What is chosen in this context, by operation: implementations, on a GPU one for each form of calls."""
    _chosen.clear()
    yield _chosen


@functools.cache
def is_installed() -> bool:
    """Whether longmix is. Models that were exported with their code run without it, too, and then in plain PyTorch."""
    try:
        return importlib.util.find_spec("longmix") is not None
    except ModuleNotFoundError:
        return False


@torch.compiler.assume_constant_result  # torch.compile does not look into imports and builds
def obstacle(operation: str, name: str, kind: str) -> str | None:
    """The reason why `name`, cpu or triton, cannot run `operation` on a device of a kind; None if it can."""
    return _obstacle(operation, name, kind)


@functools.cache
def _obstacle(operation: str, name: str, kind: str) -> str | None:
    module = f"longmix.kernels.{folder_of(operation)}.{_MODULES[name]}"
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
        return _triton_fault(module)
    if kind != "cpu":
        return f"it is for the CPU, not for {kind}"
    reason = importlib.import_module(module).FUNCTIONS[operation].obstacle()
    if reason is not None:
        _warn_once(reason, "C++")
    return reason


def _triton_fault(module: str) -> str | None:
    """Why kernels cannot be imported, or are for later versions, with what is needed."""
    try:
        importlib.import_module(module)
        why = "all kernels"
    except Exception as error:
        why = f"its kernels ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
    else:
        if not _is_old_triton():
            return None
    version = getattr(sys.modules.get("triton"), "__version__", "of an unknown version")
    return f"triton {version} cannot import {why}; needed is a triton that fits this torch, {OLDEST_TRITON} or later"


def _is_old_triton() -> bool:
    major, minor, *_ = re.findall(r"\d+", sys.modules["triton"].__version__)
    return (int(major), int(minor)) < tuple(map(int, OLDEST_TRITON.split(".")))


@torch.compiler.assume_constant_result
def may_prove(operation: str) -> bool:
    """Whether there are kernels and a GPU to prove them on: tensors may be on one that is only pretended."""
    if not _gpu_is_here():
        return False
    reason = _obstacle(operation, "triton", GPU)
    if reason is not None and "cannot import" in reason:
        _warn_once(reason, "Triton")
    return reason is None


@functools.cache
def _gpu_is_here() -> bool:
    return torch.cuda.is_available()


@torch.compiler.assume_constant_result
def _is_proved(operation: str, device: torch.device, form: tuple | None) -> bool:
    proving = getattr(_loaded, _import("proving"))
    typical = proving.typical(operation, torch.float32)
    proof = typical if form is None else typical._replace(form=type(typical.form)(*form))
    return proving.is_proved(proof, device)


_warned: list[str] = []


def _warn_once(reason: str, kernels: str) -> None:
    """Warn the first time only: what keeps one operation from its kernels keeps the others from theirs, as a rule."""
    if kernels not in _warned:
        _warned.append(kernels)
        warnings.warn(f"{reason}; plain PyTorch runs in place of the {kernels} kernels", stacklevel=4)


def select(
    operation: str, device: torch.device, implementations: dict[str, Callable], in_graphs: bool = True
) -> Callable:
    """The function that runs `operation` on `device`: one of `implementations`, by name, or an operator.

    The choice is made once for each call: the operator of the hand-written kernels, and its derivative later, run the
    kernels chosen then. On a GPU it depends on the arguments, and is made when they are there.

    Args:
        in_graphs: false where torch's compiler makes of plain PyTorch what kernels for GPUs are: in what it compiles
            none is proved, noted or run then.
    """
    if not in_graphs and device.type == GPU and torch.compiler.is_compiling() and asked() != "reference":
        _note(operation, "portable")
        return implementations["portable"]
    if device.type == GPU and asked() == "auto" and may_prove(operation):
        return functools.partial(_run_proved, operation, device, implementations)
    return _function(implementation(operation, device), operation, implementations)


def _run_proved(operation: str, device: torch.device, implementations: dict[str, Callable], *arguments: object):
    form = getattr(_loaded, _import(f"{folder_of(operation)}.proof")).form(*arguments)
    return _function(implementation(operation, device, tuple(form)), operation, implementations)(*arguments)


def _function(name: str, operation: str, implementations: dict[str, Callable]) -> Callable:
    if name not in _MODULES:
        return implementations[name]
    module = getattr(_loaded, _import(f"{folder_of(operation)}.operator"))
    return functools.partial(getattr(module, operation), _MODULES[name])


# Modules of this folder that have been imported. Whoever traces a function sees what is added here meanwhile, but
# sys.modules as it was when the function first looked there.
_loaded = types.ModuleType("loaded")


@torch.compiler.assume_constant_result
def _import(module: str) -> str:
    """The attribute of `_loaded` that is a module of this folder, once it is imported."""
    name = module.replace(".", "_")
    setattr(_loaded, name, importlib.import_module(f"longmix.kernels.{module}"))
    return name
