"""Versions, devices, compilers and kernels of this machine, and what is wrong with them, for `longmix doctor`."""

import os
import platform
import shutil
import warnings

import torch

from longmix.kernels import ops
from longmix.kernels.linear import products
from longmix.kernels.selection import obstacle

from ..processes.precision import choose_precision
from ..samples.host_memory import host_memory
from ..settings.provenance import versions
from .kernel_proofs import faulty_devices, proof_tables


def report() -> tuple[str, bool]:
    """(text, whether nothing is wrong)."""
    problems: list[str] = []
    # First: nothing else of this process has used a GPU, which may be lent to one process at a time.
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    faulty = faulty_devices(gpus, problems) if gpus else set()
    proofs = proof_tables([gpu for gpu in gpus if gpu not in faulty], problems)
    lines = [
        (
            "system",
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, "
            f"{host_memory() / 2**30:.0f} GiB memory with swap",
        ),
        *versions().items(),
        ("torch built", f"CUDA {torch.version.cuda or 'no'}, C++ ABI {int(torch._C._GLIBCXX_USE_CXX11_ABI)}"),
        *_devices(problems),
        ("compilers", ", ".join(_compilers()) or "none"),
        *_kernels(problems),
        *_launching(),
    ]
    if not _compilers():
        problems.append(
            "no C++ compiler (c++, g++ or clang++) on PATH: hand-written CPU kernels cannot be built and the plain "
            "PyTorch ones run; install one (Debian: apt install g++)"
        )
    width = max(len(name) for name, _ in lines) + 2
    text = "\n".join(f"{name:<{width}}{value}" for name, value in lines)
    verdict = "\n".join(f"wrong: {problem}" for problem in problems) if problems else "nothing is wrong"
    return "\n".join((text, *proofs, "", verdict)), not problems


def _devices(problems: list[str]) -> list[tuple[str, str]]:
    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            problems.append(
                "an NVIDIA driver is here, but this torch sees no GPU: install a CUDA build of torch that fits the "
                "driver (see README.md, GPUs)"
            )
        precision, reason = choose_precision(torch.device("cpu"))
        return [("devices", f"CPU only; precision auto means {precision} ({reason}); fp32 and bf16 work")]
    built_for = torch.cuda.get_arch_list()
    lines = [("torch built for", ", ".join(built_for))]
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        major, minor = torch.cuda.get_device_capability(device)
        precision, _ = choose_precision(device)
        size = torch.cuda.get_device_properties(device).total_memory / 2**30
        name = torch.cuda.get_device_name(device)
        about = f"{name}, sm_{major}{minor}, {size:.0f} GiB; precision auto means {precision}"
        lines.append((f"device {index}", about))
        problem = unsupported_architecture(major, minor, built_for, name)
        if problem is not None:
            problems.append(problem)
    return lines


def unsupported_architecture(major: int, minor: int, built_for: list[str], name: str) -> str | None:
    """The problem if this torch build has no code for a device of compute capability major.minor; None if it has.

    Binary code (sm_XY) runs on devices of the same major version from XY on, intermediate code (compute_XY) on all
    later ones.
    """
    for architecture in built_for:
        kind, _, digits = architecture.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        built = divmod(int(digits), 10)
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return None
        if kind == "compute" and built <= (major, minor):
            return None
    wheel = "the cu126 build of torch (pip install torch --index-url of pytorch.org's cu126 wheels)"
    remedy = wheel if major < 8 else "a newer build of torch"
    return f"{name} is sm_{major}{minor}, but this torch is built for {', '.join(built_for)}: install {remedy}"


def _compilers() -> list[str]:
    return [name for name in ("c++", "g++", "clang++", "nvcc") if shutil.which(name)]


def _kernels(problems: list[str]) -> list[tuple[str, str]]:
    """What runs on the CPU; the proofs say what does on a GPU."""
    try:
        lines = [(f"kernel {name}", f"cpu: {_choice(name)}") for name in (*ops.OPERATIONS, *ops.AROUND_MIXERS)]
        return [*lines, ("fp32 products", f"cpu: {'oneDNN' if products.is_chosen() else 'as torch multiplies'}")]
    except ValueError as error:
        problems.append(str(error))
        return [("kernels", "see below")]


def _choice(operation: str) -> str:
    """The implementation that runs, and why it is not the hand-written one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the line says it
        name = ops.implementation(operation, "cpu")
    if os.environ.get(ops.ENVIRONMENT_VARIABLE, "auto") != "auto":
        return f"{name} ({ops.ENVIRONMENT_VARIABLE} says so)"
    reason = obstacle(operation, "cpu", "cpu")
    return name if reason is None else f"{name} ({reason})"


def _launching() -> list[tuple[str, str]]:
    return [("slurm", "srun found" if shutil.which("srun") else "no srun on PATH")]
