"""What one process compiles for compiling.py: launches recorded in place of being made, and ptxas' figures of them.

Reads a question as JSON from stdin and writes rows as JSON to stdout. Needs Triton 3.5 or later, which can tell what
ptxas said.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from gpu_model.launches import CASES, LARGEST, Case
from gpu_model.targets import targeted
from triton.runtime.jit import JITFunction

LARGEST_GRID = (2**31 - 1, 65535, 65535)
# Bytes of shared memory that a program may have, by the card's capability.
SHARED_BYTES = {70: 96 << 10, 80: 163 << 10, 90: 227 << 10}
REGISTERS_OF_A_PROGRAM, THREADS_OF_A_PROGRAM = 65536, 1024
TENSOR_CORE = re.compile(r"^\s*(?:@\S+\s+)?(?:wgmma\.mma_async|mma\.sync|wmma\.mma)", re.MULTILINE)


@dataclass(frozen=True)
class Launch:
    """A launch that was not made; `compiled` is Triton's kernel, None where it was only noted."""

    name: str
    grid: tuple[int, ...]
    compiled: object


# What ptxas said of each kernel when it was compiled, by its hash, and the seconds of a processor that it took: Triton
# compiles once in a process.
_SAID: dict[str, tuple[str, float]] = {}


@contextlib.contextmanager
def recorded(capability: int, compiles: bool) -> Iterator[list[Launch]]:
    """with recorded(80, True) as launches: a kernel launched in it is compiled for the card, or only noted, and not
    run. Triton and its driver are as before afterwards.
    """
    launches, run = [], JITFunction.run

    def record(kernel, *args, grid, warmup, **options):
        compiled, said = None, io.StringIO()
        if compiles:
            begun = _processor_seconds()
            with contextlib.redirect_stdout(said):
                compiled = run(kernel, *args, grid=grid, warmup=True, **options)
            _SAID.setdefault(compiled.hash, (said.getvalue(), _processor_seconds() - begun))
        launches.append(Launch(kernel.fn.__name__, tuple(grid), compiled))

    with targeted(capability), mock.patch.object(JITFunction, "run", record):
        yield launches


def _processor_seconds() -> float:
    """Of this process, and of ptxas."""
    return sum(os.times()[:4])


def figures(launch: Launch, capability: int) -> dict:
    """The fields of CompiledKernel that are the kernel's own.

    Raises:
        RuntimeError: ptxas said nothing of registers and spills.
    """
    said, seconds = _SAID[launch.compiled.hash]
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.search(r"(\d+) bytes spill stores", said)
    if registers is None or spills is None:
        raise RuntimeError(f"{launch.name}: no figures in what ptxas said: {said!r}")
    shared, threads = launch.compiled.metadata.shared, 32 * launch.compiled.metadata.num_warps
    fits = (
        shared <= SHARED_BYTES[capability]
        and threads <= THREADS_OF_A_PROGRAM
        and int(registers[1]) * threads <= REGISTERS_OF_A_PROGRAM
        and all(count <= most for count, most in zip(launch.grid, LARGEST_GRID, strict=False))
    )
    return {
        "name": launch.name,
        "registers": int(registers[1]),
        "spilled_bytes": int(spills[1]),
        "shared_bytes": shared,
        "fits": fits,
        "tensor_core_instructions": len(TENSOR_CORE.findall(launch.compiled.asm["ptx"])),
        "grid": launch.grid,
        "threads": threads,
        "seconds": round(seconds, 2),
    }


def compile_case(case: Case, capability: int) -> Iterator[dict]:
    """The distinct kernels of a case, those of fp32 first: most compute other dtypes with the same ones."""
    seen = set()
    for dtype in case.dtypes:
        if dtype == torch.bfloat16 and capability < 80:
            continue
        with recorded(capability, True) as launches:
            case.call(dtype)
        for launch in launches:
            if id(launch.compiled) not in seen:
                seen.add(id(launch.compiled))
                place = {"target": f"sm_{capability}", "case": case.name, "dtype": str(dtype).removeprefix("torch.")}
                yield {**place, **figures(launch, capability)}


def count_case(case: Case, capability: int) -> Iterator[dict]:
    """Every launch of a case, without compiling it."""
    with recorded(capability, False) as launches:
        case.call(case.dtypes[0])
    for launch in launches:
        yield {"case": case.name, "name": launch.name, "grid": launch.grid}


def main() -> int:
    """Answer one question; 1 if a kernel does not compile, which stderr says."""
    question = json.load(sys.stdin)
    known = {**CASES, **LARGEST}
    answer, default = {"compile": (compile_case, CASES), "count": (count_case, LARGEST)}[question["what"]]
    names = list(default) if question["cases"] is None else question["cases"]
    tasks = [(name, capability) for name in names for capability in question["capabilities"]]
    rows, errors = [], []
    for name, capability in tasks[question["share"] :: question["shares"]]:
        try:
            rows += answer(known[name], capability)
        except Exception as error:
            errors.append(f"{name} for sm_{capability}: {type(error).__name__}: {error}")
    print(*errors, sep="\n", file=sys.stderr)
    json.dump(rows, sys.stdout)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
