"""What the loss of a language model costs on a CPU, with the layer that gives its logits, forward and backward.

    python -m learned.loss_cost [--rounds 7]  # in benchmarks/

compares plain PyTorch, which makes all logits and looks for the right answers too; PyTorch's own loss in chunks
(`linear_cross_entropy`, since 2.13), which does not look for them; and `longmix.kernels.ops.linear_cross_entropy` in
C++, with the rows behind them that our models add. All get the same rows, in one thread and in turn, in a process that
keeps the memory that it frees, as a training run does; losses and gradients must be equal, or there are no figures.
Appends CPU time (the least of all rounds: this is what others disturb least) and peak memory to
benchmarks/results.csv, and draws the table of docs/learning.md from that file.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import record
import tables
import torch
from measuring import Competitor, peak_memory, return_memory
from torch.nn import functional

from longmix.data_prep.files import write_text
from longmix.kernels import ops
from longmix.kernels.common.choice import ENVIRONMENT_VARIABLE
from longmix.modeling.language_models import in_few_sizes
from longmix.trainer.samples.freed_memory import keep_freed_memory

BENCHMARK = "loss_cost"
DOCUMENT = Path(__file__).parents[2] / "docs" / "learning.md"
# Rows with a label, words, channels. 30 % of 8 and of 32 rows of 128 tokens are 307 and 1,229.
SHAPES = ((307, 8192, 128), (1229, 8192, 128), (1229, 30522, 128), (1229, 30522, 768))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHUNK = 512  # of PyTorch's own: those that it chooses are smaller, and take longer
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
PLAIN, CHUNKED, OURS = "plain PyTorch", "PyTorch in chunks", "ours"
FIGURE, COMMAND = "CPU ms", "cd benchmarks && python -m learned.loss_cost"
ENOUGH = 1 << 40  # bytes of free memory
Gradients = tuple[torch.Tensor, ...]


def inputs(shape: tuple[int, int, int], dtype: str) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight, bias and labels."""
    rows, words, channels = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((rows, channels), (words, channels), (words,))
    made = [(torch.randn(size, generator=generator) / channels**0.5).to(DTYPES[dtype]) for size in sizes]
    return *(tensor.requires_grad_() for tensor in made), torch.randint(0, words, (rows,), generator=generator)


def call_of(name: str, hidden, weight, bias, labels) -> Callable[[], Gradients]:
    """A call that gives the loss and its gradients, as a training step has them."""

    def total():
        if name == CHUNKED:
            options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)
            return functional.linear_cross_entropy(
                hidden, weight, labels, linear_bias=bias, reduction="sum", options=options
            )
        with mock.patch.dict(os.environ, {ENVIRONMENT_VARIABLE: "portable" if name == PLAIN else "cpu"}):
            rows = in_few_sizes(hidden, labels) if name == OURS else (hidden, labels)
            return ops.linear_cross_entropy(rows[0], weight, bias, rows[1])[0]

    def call():
        loss = total() / len(labels)
        return loss.detach(), *torch.autograd.grad(loss, (hidden, weight, bias))

    return call


def contestants() -> tuple[str, ...]:
    """Those that this PyTorch has."""
    return (PLAIN, CHUNKED, OURS) if hasattr(functional, "linear_cross_entropy") else (PLAIN, OURS)


def check(name: str, found: Gradients, expected: Gradients, tolerance: float) -> None:
    """Raise SystemExit where results differ."""
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other.double()).norm() / other.double().norm()
        if not error <= tolerance:
            raise SystemExit(f"{name} differs from {PLAIN} by {error:.1e}; allowed: {tolerance}")


def milliseconds(shape: tuple[int, int, int], dtype: str, rounds: int) -> dict[str, list[float]]:
    """CPU time of every contestant's calls, which take turns."""
    arguments = inputs(shape, dtype)
    calls = {name: call_of(name, *arguments) for name in contestants()}
    expected = calls[PLAIN]()
    for name, call in calls.items():
        check(name, call(), expected, TOLERANCE[dtype])
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            found[name].append(1e3 * (time.process_time() - started))
    return found


def megabytes(name: str, shape: tuple[int, int, int], dtype: str) -> float:
    """Peak memory of a call beyond its arguments, in a process of its own."""
    words = [sys.executable, "-m", "learned.loss_cost", "--memory-of", json.dumps([name, shape, dtype])]
    return float(
        subprocess.run(words, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True).stdout
    )


def _memory_of(name: str, shape: tuple[int, int, int], dtype: str) -> float:
    call_of(name, *inputs((64, 64, 8), dtype))()  # what happens once, like loading a kernel
    return_memory()
    call = call_of(name, *inputs(shape, dtype))
    return peak_memory(Competitor(name, call), torch.device("cpu")) / 1e6


def table(rows: list[dict[str, str]]) -> str:
    """The newest figures of every case among `rows` of results.csv."""
    newest = {(row["case"], row["shape"], row["dtype"]): row for row in rows}
    header, lines = [""], []
    for dtype in DTYPES:
        header += [f"{dtype}: {name}" for name in (PLAIN, CHUNKED, OURS)]
    for shape in SHAPES:
        cells = [_shown(shape)]
        for dtype in DTYPES:
            for name in (PLAIN, CHUNKED, OURS):
                row = newest.get((name, _shown(shape), dtype))
                cells.append("–" if row is None else f"{_least(row):.0f} ms, {float(row['memory']):.0f} MB")
        lines.append(cells)
    return f"{tables.draw(header, lines)}\n\n{tables.measured(newest.values())}"


def _least(row: dict[str, str]) -> float:
    return float(row["spread"].partition("..")[0])


def _shown(shape: tuple[int, int, int]) -> str:
    return "{:,} rows, {:,} words, {} channels".format(*shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="calls of each, in turn (default: 7)")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of is not None:
        print(_memory_of(*json.loads(arguments.memory_of)))
        return
    keep_freed_memory(ENOUGH)
    for shape in SHAPES:
        for dtype in DTYPES:
            for name, times in milliseconds(shape, dtype, arguments.rounds).items():
                facts = {"device": "cpu", "threads": 1, "dtype": dtype, "shape": _shown(shape), "command": COMMAND}
                record.append(BENCHMARK, name, FIGURE, times, "ms", **facts, memory=megabytes(name, shape, dtype))
    drawn = table(record.rows(BENCHMARK))
    write_text(DOCUMENT, tables.replace(DOCUMENT.read_text(encoding="utf-8"), "loss", drawn))


if __name__ == "__main__":
    main()
