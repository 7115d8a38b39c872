"""What stage 1 of the GPU kit launches, compiled ahead of time into Triton's cache: its hard inputs have other shapes
than the cases of gpu_model/launches.py.

    python -m gpu_kit.compiling SHARE SHARES CAPABILITY ...  # in benchmarks/: every SHARESth of them
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from gpu_kit.hard_inputs import CASES, DTYPES, Inputs, placed
from gpu_model.launches import _ToLaunchers, without_autocast

from longmix.kernels import ops
from longmix.kernels.selection import as_on_gpus


def launch(operation: str, inputs: Inputs, dtype: torch.dtype) -> None:
    """Run an operation's launchers forward and backward, on tensors of the inputs' shapes without data."""
    arguments, keywords = placed(inputs, dtype, "meta")
    leaves = [x.requires_grad_() for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()]
    with as_on_gpus(), without_autocast(), _ToLaunchers():
        result = getattr(ops, operation)(*arguments, **keywords)
        torch.autograd.grad(result, leaves, torch.empty_like(result), allow_unused=True)


def compile_all(capabilities: Iterable[int], cache: Path) -> None:
    """Compile what all hard inputs launch, in every precision, into the folder `cache`.

    Raises:
        RuntimeError: something does not compile; what the process said.
    """
    processes = os.cpu_count() or 1
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda share: compile_share(capabilities, cache, share, processes), range(processes)))


def compile_share(capabilities: Iterable[int], cache: Path, share: int, shares: int) -> None:
    """Compile every `shares`th of them, in a process of its own: Triton decides at its import whether it interprets.

    Raises:
        RuntimeError: as `compile_all`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "gpu_kit.compiling", str(share), str(shares), *map(str, capabilities)],
        cwd=Path(__file__).parents[1],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def main() -> None:
    """Compile one share."""
    from gpu_model.recording import recorded

    _, share, shares, *capabilities = sys.argv
    tasks = [(operation, make, dtype) for operation in CASES for make in CASES[operation].values() for dtype in DTYPES]
    for capability in map(int, capabilities):
        with recorded(capability, True):
            for operation, make, dtype in tasks[int(share) :: int(shares)]:
                launch(operation, make(torch.Generator().manual_seed(0)), getattr(torch, dtype))


if __name__ == "__main__":
    main()
