"""Time and memory of the operations and of whole mixers, side by side.

    python benchmarks/kernel_speed.py [--operations NAME ...] [--lengths N ...] [--device cuda] [--dtype float16]

Every operation by the papers' own algorithm (kernel/baselines.py), by plain PyTorch (LONGMIX_KERNELS=portable), and by
our kernels; every mixer so too, beside softmax attention and FNet's transform. What computes something wrong is not
timed. Appends the figures to benchmarks/results.csv and redraws docs/kernels.md. On two cores: about 12 minutes.
"""

import argparse
import functools
import math
import sys
from dataclasses import dataclass

import kernel_report
import record
import torch
from kernel.cases import LAYERS, OPERATIONS
from kernel.figures import BOTH, FORWARD, LAYER, LENGTHS
from kernel.gate import SMALL, WrongResultError, check
from kernel.kinds import Layer, Operation, Prepared, shape_of, using
from kernel_memory import MemoryMeter
from measuring import Competitor, copy_bandwidth, interleaved, peak_memory

QUICK_LENGTHS = (128, 256)
METHODS = {FORWARD: "forward", BOTH: "gradients"}  # of Prepared
EVERY_LAYER = "layers"


@dataclass(frozen=True)
class Contestant:
    """An implementation of a case, at one length."""

    case: Operation | Layer
    implementation: str
    prepared: Prepared

    @property
    def name(self) -> str:
        """Unique among those that take turns."""
        return f"{self.case.name}, {self.implementation}"

    def competitor(self, method: str) -> Competitor:
        """The competitor that is measured."""
        setting = functools.partial(using, self.implementation)
        return Competitor(self.name, getattr(self.prepared, method), setting)


class Benchmark:
    """Measures groups of cases; those of a group take turns."""

    def __init__(self, arguments: argparse.Namespace, meter: MemoryMeter):
        self.device, self.dtype = arguments.device, arguments.dtype
        self.threads, self.budget, self.records = arguments.threads, arguments.budget_seconds, not arguments.quick
        self.meter = meter

    def ways(self, case: Operation | Layer) -> list[str]:
        """The implementations that compute in this precision.

        The papers' algorithms and FNet take Fourier transforms, of which torch has none of bf16 and few of fp16.
        """
        found = case.implementations(self.device)
        if self.dtype.itemsize > 2:
            return found
        return [name for name in found if name != "baseline" and case.name != "fnet"]

    def check(self, group: list[Operation | Layer]) -> None:
        """Compare everything with the equations, at a length where these are fast enough."""
        for case in group:
            check(case, self.ways(case), SMALL, self.device, self.dtype)

    def copying(self) -> None:
        """Measure what bandwidth memory has."""
        self.note("copy", "bandwidth", [rate / 1e9 for rate in copy_bandwidth(self.device)], "GB/s", "", None)

    def measure(self, group: list[Operation | Layer], length: int) -> None:
        """Measure a group at one length; what does not fit into memory takes for ever."""
        contestants = []
        for case in group:
            prepared = case.prepare(length, self.device, self.dtype)
            contestants += [Contestant(case, name, prepared) for name in self.ways(case)]
        memory = {
            (one.name, method): self.memory(one, length, method) for one in contestants for method in METHODS.values()
        }
        for case in group:
            if isinstance(case, Operation):
                fitting = [one.implementation for one in contestants if memory[one.name, "gradients"] is not None]
                check(case, fitting, length, self.device, self.dtype)
        for direction, method in METHODS.items():
            running = [one.competitor(method) for one in contestants if memory[one.name, method] is not None]
            seconds = interleaved(running, self.budget, self.device)
            for one in contestants:
                case = f"{LAYER}{one.case.name}" if isinstance(one.case, Layer) else one.case.name
                milliseconds = [1e3 * value for value in seconds.get(one.name, [math.inf])]
                shape = shape_of(one.case, length)
                figure = f"{direction}, {one.implementation}"
                self.note(case, figure, milliseconds, "ms", shape, memory[one.name, method])

    def memory(self, one: Contestant, length: int, method: str) -> int | None:
        """Bytes beyond the arguments at the peak of a call; None: it does not fit."""
        if self.device.type == "cpu":
            return self.meter.measure(one.case.name, one.implementation, length, method)
        try:
            return peak_memory(one.competitor(method), self.device)
        except torch.OutOfMemoryError:
            return None

    def note(self, case: str, figure: str, values: list[float], unit: str, shape: str, memory: int | None) -> None:
        """Record a figure; without recording, show it."""
        if not self.records:
            taken = "" if memory is None else f", {memory / 1e6:.1f} MB"
            print(f"{case}, {figure}, {shape}: {record.quantile(values, 0.5):.4g} {unit}{taken}", flush=True)
            return
        record.append(
            "kernels",
            case,
            figure,
            values,
            unit,
            device=self.device.type,
            threads=self.threads,
            dtype=str(self.dtype).removeprefix("torch."),
            shape=shape,
            memory=None if memory is None else memory / 1e6,
        )


def main() -> int:
    arguments = _parse()
    torch.set_num_threads(arguments.threads)
    groups = [[OPERATIONS[name]] for name in arguments.operations if name != EVERY_LAYER]
    if EVERY_LAYER in arguments.operations:
        groups.append(list(LAYERS.values()))
    with MemoryMeter(arguments.threads, arguments.dtype) as meter:
        benchmark = Benchmark(arguments, meter)
        try:
            for group in groups:
                benchmark.check(group)
            benchmark.copying()
            for group in groups:
                for length in arguments.lengths:
                    benchmark.measure(group, length)
        except WrongResultError as error:
            print(error, file=sys.stderr)
            return 1
    if benchmark.records:
        kernel_report.redraw()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*OPERATIONS, EVERY_LAYER]
    parser.add_argument("--operations", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--lengths", nargs="+", type=int, metavar="N", help=f"default: {' '.join(map(str, LENGTHS))}")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and of our kernels (default: 2)")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu (default) or cuda")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=0.6,
        help="for one operation, length and direction; more if it is slow (default: 0.6)",
    )
    parser.add_argument("--quick", action="store_true", help="two short lengths, run a few times; nothing is recorded")
    arguments = parser.parse_args()
    arguments.dtype = getattr(torch, arguments.dtype)
    arguments.lengths = arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
