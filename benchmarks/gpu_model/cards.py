"""GPUs as their vendor's data sheets have them, and the time that launches take on them by a roofline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# What a launch is taken to cost beside its work, where launches follow each other.
LAUNCH_SECONDS = 3e-6
UNITS = ("tensor core", "fp32", "fp64")


class Launch(NamedTuple):
    """A call of the device, which may be several launches of a library.

    Args:
        name: of the operator, or of the Triton kernel.
        launches: how many it takes.
        bytes: read and written.
        operations: additions and multiplications, each one counted.
        unit: of UNITS, what computes them.
        programs: of a Triton kernel's grid; None: a library's, taken to fill every card.
    """

    name: str
    launches: int
    bytes: int
    operations: int = 0
    unit: str = "fp32"
    programs: int | None = None


@dataclass(frozen=True)
class Card:
    """One GPU.

    Args:
        name: as in tables.
        model: exactly which, and the data sheet.
        dtype: of weights and activations that it trains with.
        bandwidth: bytes a second.
        peak: operations a second of each unit, of dense matrices; fp32 without TF32, fp64 without tensor cores.
        multiprocessors: a program runs on one of them.
        flash: FlashAttention-2 runs on it; else memory-efficient attention.
    """

    name: str
    model: str
    dtype: str
    bandwidth: float
    peak: Mapping[str, float]
    multiprocessors: int
    flash: bool = True

    def seconds(self, launch: Launch, only_its_programs: bool = False) -> float:
        """The larger of the times for bytes and for operations, and the launches' own.

        Args:
            only_its_programs: where there are fewer programs than multiprocessors, only as many of these give bandwidth
                and operations.
        """
        share = 1.0
        if only_its_programs and launch.programs is not None:
            share = min(1.0, launch.programs / self.multiprocessors)
        work = max(launch.bytes / self.bandwidth, launch.operations / self.peak[launch.unit])
        return work / share + launch.launches * LAUNCH_SECONDS


def _peak(tensor_core: float, fp32: float, fp64: float) -> dict[str, float]:
    return dict(zip(UNITS, (tensor_core * 1e12, fp32 * 1e12, fp64 * 1e12), strict=True))


_HOPPER = _peak(989, 67, 34)
CARDS = (
    Card("V100", "V100 SXM2, NVIDIA's V100 data sheet", "float16", 900e9, _peak(125, 15.7, 7.8), 80, flash=False),
    Card("A100", "A100 SXM 40 GB, NVIDIA's A100 data sheet", "bfloat16", 1555e9, _peak(312, 19.5, 9.7), 108),
    Card("H100", "H100 SXM, NVIDIA's H100 data sheet", "bfloat16", 3350e9, _HOPPER, 132),
    Card("H200", "H200 SXM, NVIDIA's H200 data sheet", "bfloat16", 4800e9, _HOPPER, 132),
)
