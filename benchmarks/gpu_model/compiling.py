"""Triton kernels compiled ahead of time, without a GPU, exactly as their launchers would launch them.

    python benchmarks/gpu_model/compiling.py  # compiles all cases, and writes the bounds that the test holds them to

The work is done by recording.py in processes of its own: Triton decides when it is imported whether it interprets.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
LAUNCHING = ("launches.py", "recording.py", "targets.py")
CAPABILITIES = (70, 80, 90)
# {"triton": version, "sources": of `sources`, "spilled_bytes": {case: {target: {kernel: bytes}}}, "too_large": likewise
# shared bytes}: what spills, and what a card cannot take, of the kernels that these sources have.
BOUNDS = Path(__file__).with_name("bounds.json")


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as a case launches it, with ptxas' figures per thread (registers, spills) or program (shared memory).

    `spilled_bytes` are written to memory for want of registers (ptxas' spill stores), `tensor_core_instructions` are
    those in the PTX. `grid` is the number of programs along each axis, `threads` those of a program. `fits`: the card
    takes this launch. `seconds` of a processor went by until it was compiled.
    """

    name: str
    target: str
    case: str
    dtype: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    fits: bool
    tensor_core_instructions: int
    grid: tuple[int, ...]
    threads: int
    seconds: float


def compiled_kernels(
    capabilities: Iterable[int] = CAPABILITIES,
    cases: Iterable[str] | None = None,
    cache: Path | None = None,
    processes: int | None = None,
) -> list[CompiledKernel]:
    """The distinct kernels that each case launches, compiled for each of the cards.

    Args:
        capabilities: of 70 (V100), 80 (A100) and 90 (H100).
        cases: names of launches.CASES; None: all of them.
        cache: folder of Triton's compiled files; None: one that is removed at the end.
        processes: how many compile side by side; None: as many as there are cores.

    Raises:
        RuntimeError: a kernel does not compile, or there is no such case; what the process said.
    """
    rows = _ask("compile", tuple(capabilities), cases, cache, processes or os.cpu_count() or 1)
    return [CompiledKernel(**{**row, "grid": tuple(row["grid"])}) for row in rows]


def launched_grids(cases: Iterable[str] | None = None) -> list[tuple[str, str, tuple[int, ...]]]:
    """(case, kernel, grid) of every launch of cases, None: those of the largest shapes (launches.LARGEST); nothing is
    compiled.
    """
    rows = _ask("count", CAPABILITIES[-1:], cases, None, 1)
    return [(row["case"], row["name"], tuple(row["grid"])) for row in rows]


def sources() -> str:
    """What compiled kernels follow from, as a hash: the code of launchers and of launches, without what it says."""
    paths = [*_launchers(FOLDER.parent / "kernels"), *(Path(__file__).with_name(name) for name in LAUNCHING)]
    code = (ast.unparse(_without_docstrings(_parsed(path))) for path in paths)
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def _launchers(kernels: Path) -> list[Path]:
    """The files that launchers and the operators beside them are made of: these, what they import, and so on, without
    what chooses between implementations."""
    launchers = list(kernels.glob("*/gpu_kernels.py"))
    waiting, found = [*launchers, *(launcher.with_name("operator.py") for launcher in launchers)], set()
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file() or path == kernels / "selection.py":
            continue
        found.add(path)
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                module = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                waiting += [module.with_suffix(".py"), *(module / f"{name.name}.py" for name in node.names)]
    return sorted(found)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _ask(
    what: str, capabilities: tuple[int, ...], cases: Iterable[str] | None, cache: Path | None, processes: int
) -> list[dict]:
    """The rows that processes of recording.py write, each for its share of the work."""
    question = {"what": what, "capabilities": capabilities, "cases": None if cases is None else list(cases)}

    def ask(share: int) -> list[dict]:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_model.recording"],
            cwd=FOLDER,
            env=environment,
            input=json.dumps({**question, "share": share, "shares": processes}),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"gpu_model.recording ended with {done.returncode}")
        return json.loads(done.stdout)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        # ptxas is asked again where Triton has a compiled file already: what it says is not kept there.
        settings = {
            "TRITON_ALWAYS_COMPILE": "1",
            "TRITON_DUMP_PTXAS_LOG": "1",
            "TRITON_CACHE_DIR": str(cache or folder),
        }
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | settings
        return [row for rows in pool.map(ask, range(processes)) for row in rows]


def worst(kernels: Iterable[CompiledKernel], figure: str) -> dict[str, dict[str, dict[str, int]]]:
    """The largest value of a figure, {case: {target: {kernel: value}}}: a kernel has variants for its launches."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for kernel in kernels:
        values = table.setdefault(kernel.case, {}).setdefault(kernel.target, {})
        values[kernel.name] = max(values.get(kernel.name, 0), getattr(kernel, figure))
    return table


def main() -> None:
    """Compile everything, and write BOUNDS."""
    before = sources()
    kernels = compiled_kernels()
    if sources() != before:
        sys.exit("the kernels were changed while they were compiled: nothing is written")
    bounds = {
        "triton": version("triton"),
        "sources": before,
        "spilled_bytes": worst((kernel for kernel in kernels if kernel.spilled_bytes), "spilled_bytes"),
        "too_large": worst((kernel for kernel in kernels if not kernel.fits), "shared_bytes"),
    }
    BOUNDS.write_text(json.dumps(bounds, indent=1, sort_keys=True) + "\n")
    print(f"{len(kernels)} kernels; {sum(bool(kernel.spilled_bytes) for kernel in kernels)} spill")


if __name__ == "__main__":
    main()
