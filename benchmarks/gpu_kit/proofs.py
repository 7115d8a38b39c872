"""Stage 1: what there is, and whether every kernel computes what it should here."""

import importlib.metadata
import platform
import subprocess
import sys

import torch
from commands import end_with_parent
from gpu_kit import processes
from gpu_kit.hard_inputs import BLOCKS, CASES, DTYPES, placed
from gpu_kit.records import Measurement, Records
from gpu_kit.setting import Setting, asked_of_the_card, clocks
from kernel.gate import TOLERANCES, relative_error
from kernel.kinds import using

from longmix.kernels import ops
from longmix.kernels.selection import obstacle

# Library -> its name in the package index, where they differ.
_DISTRIBUTIONS = {"fla": "flash-linear-attention"}
# Hard inputs of an operation in a trial on a CPU: it tries the kit, and the interpreter takes a minute for some.
CASES_OF_A_TRIAL = 1


def plan(setting: Setting, records: Records, seconds: float) -> list[Measurement]:
    """The environment, then every operation in every precision, in processes side by side: they compile meanwhile."""
    found = [
        Measurement("1/environment", "gpu_kit.proofs:environment", seconds=60, alone=False),
    ]
    # Those that compile longest begin first.
    slow_first = sorted(CASES, key=lambda name: ("attention" not in name, name != "givens_mix"))
    found += [
        Measurement(
            f"1/proof/{operation}/{dtype}",
            "gpu_kit.proofs:prove",
            {"operation": operation, "dtype": dtype},
            seconds=300,
            alone=False,
        )
        for number, operation in enumerate(slow_first)
        for dtype in ([DTYPES[number % len(DTYPES)]] if setting.quick else DTYPES)
    ]
    # Alone, since it times what it has proved. It compiles one kernel after the other.
    return [*found, Measurement("1/doctor", "gpu_kit.proofs:doctor", seconds=300)]


def environment(setting: Setting) -> dict[str, str]:
    """Names and versions; touches the GPU."""
    found = {
        "card": f"{setting.cards} x {setting.card}" if setting.cards else setting.card,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        **{name: _version(name) for name in ("triton", "transformers", "deepspeed", "accelerate", "matplotlib", "fla")},
    }
    if setting.device != "cuda":
        return found
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    found |= {
        "capability": f"sm_{properties.major}{properties.minor}, {properties.multi_processor_count} multiprocessors",
        "memory": f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free",
        "driver": _driver(),
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none",
        "bf16": "yes" if setting.half == "bfloat16" else "no",
        **clocks(),
    }
    product = torch.ones(64, 64, device="cuda", dtype=torch.float16) @ torch.eye(64, device="cuda", dtype=torch.float16)
    return {**found, "a product in fp16": f"{product.sum().item():.0f}, expected: 4096"}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    try:
        return asked_of_the_card("driver_version")[0]
    except (OSError, subprocess.SubprocessError) as error:
        return processes.one_line(f"unknown: {error}")


def doctor(setting: Setting) -> dict[str, object]:
    """What `longmix doctor` says."""
    command = [sys.executable, "-m", "longmix.trainer", "doctor"]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=end_with_parent)
    return {"code": ended.returncode, "text": ended.stdout + ended.stderr}


def prove(setting: Setting, operation: str, dtype: str) -> dict[str, object]:
    """Result and gradients of the Triton kernels on every hard input: against the equations in float64 on the CPU, and
    twice, to the bit.

    Returns:
        "cases": name -> [error of the result, largest error of a gradient, whether both runs have the same bits], and
        "wrong": what is beyond the tolerance; empty: nothing.
    """
    reason = obstacle(operation, "triton", setting.device)
    if reason is not None:
        raise processes.NotHereError(f"{operation} has no Triton kernel here: {reason}")
    if dtype == "bfloat16" and setting.half != dtype:
        raise processes.NotHereError("this card has no bf16")
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    cases, wrong = {}, []
    names = [name for name in CASES[operation] if not (setting.quick and name.startswith("one"))]
    if setting.device == "cpu":
        names = [name for name in names if not name.startswith(BLOCKS)][:CASES_OF_A_TRIAL]
    for name in names:
        make = CASES[operation][name]
        print(name, flush=True)  # so that a crash tells which
        truth = _results(operation, "reference", make, kind, "cpu")
        first, second = (_results(operation, "triton", make, kind, setting.device) for _ in range(2))
        errors = [relative_error(found, expected) for found, expected in zip(first, truth, strict=True)]
        bits = all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(first, second, strict=True))
        cases[name] = [errors[0], max(errors[1:]), bits]
        for what, error, allowed in zip(("result", "gradient"), cases[name], TOLERANCES[kind], strict=False):
            if not error <= allowed:  # a NaN is wrong too
                wrong.append(f"{name}: the {what} is off by {error:.1e}; allowed: {allowed:g}")
    return {"cases": cases, "wrong": wrong}


def _results(operation: str, implementation: str, make, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """[result, gradients ...] on the CPU; the inputs are rounded to `dtype` for all implementations alike."""
    generator = torch.Generator().manual_seed(0)
    arguments, keywords = placed(make(generator), dtype, device, is_exact=implementation == "reference")
    leaves = [x.requires_grad_(True) for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()]
    with using(implementation):
        result = getattr(ops, operation)(*arguments, **keywords)
        cotangent = torch.randn(result.shape, generator=generator).to(dtype).to(result)
        # An argument that a small case does not use has a gradient of zero.
        gradients = torch.autograd.grad(result, leaves, cotangent, materialize_grads=True)
    return [result.detach().cpu(), *(gradient.cpu() for gradient in gradients)]
