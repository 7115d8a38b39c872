"""The figures of benchmarks/kernel_speed.py, looked up in benchmarks/results.csv."""

import math

import record
import torch
from kernel.cases import LAYERS, OPERATIONS
from kernel.kinds import shape_of

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
FORWARD, BOTH = "forward", "forward+backward"
# How a layer is recorded, so that it is not taken for an operation.
LAYER = "layer "
CASES = {**OPERATIONS, **{f"{LAYER}{name}": case for name, case in LAYERS.items()}}


class Figures:
    """The newest figure of each case and length on one device, in one dtype, with as many threads as the newest of all.

    The implementations of a case are always measured together, so that their ratios are those of one run.
    """

    def __init__(self, device: str, dtype: str):
        self.dtype = getattr(torch, dtype)
        rows = [row for row in record.rows("kernels") if (row["device"], row["dtype"]) == (device, dtype)]
        self.rows = {
            (row["case"], row["figure"], row["shape"]): row for row in rows if row["threads"] == rows[-1]["threads"]
        }

    def row(self, case: str, direction: str, implementation: str, length: int) -> dict[str, str] | None:
        """What was recorded, or None."""
        return self.rows.get((case, f"{direction}, {implementation}", shape_of(CASES[case], length)))

    def milliseconds(self, case: str, direction: str, implementation: str, length: int) -> float | None:
        """The median time; infinite where memory does not suffice; None: not measured."""
        row = self.row(case, direction, implementation, length)
        return None if row is None else float(row["value"])

    def ours(self, case: str, length: int) -> str:
        """The implementation of ours, hand-written kernels or, where there are none, plain PyTorch."""
        found = [name for name in ("triton", "auto") if self.row(case, FORWARD, name, length) is not None]
        return found[0] if found else "portable"

    def series(self, case: str, direction: str, implementation: str, value: str = "value") -> dict[int, float]:
        """Length -> a finite value in column `value`."""
        found = {length: self.row(case, direction, implementation, length) for length in LENGTHS}
        return {
            length: float(row[value])
            for length, row in found.items()
            if row is not None and math.isfinite(float(row[value]))
        }

    def bandwidth(self) -> float | None:
        """Bytes a second that copying reads and writes."""
        row = self.rows.get(("copy", "bandwidth", ""))
        return None if row is None else 1e9 * float(row["value"])


def crossover(mine: dict[int, float], other: dict[int, float]) -> float | None:
    """The length from which on `mine` takes less time, between two measured ones by their power laws.

    The shortest length if it is less throughout; None: it is not less at the end.
    """
    lengths = sorted(mine.keys() & other.keys())
    excess = [math.log(mine[length] / other[length]) for length in lengths]
    if not lengths or excess[-1] >= 0:
        return None
    last = max((index for index, value in enumerate(excess) if value >= 0), default=None)
    if last is None:
        return float(lengths[0])
    share = excess[last] / (excess[last] - excess[last + 1])
    return lengths[last] * (lengths[last + 1] / lengths[last]) ** share
