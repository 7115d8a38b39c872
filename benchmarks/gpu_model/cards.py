"""GPUs as their vendor's data sheets have them, and the time that launches take on them by a roofline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from longmix.trainer.processes.cards import CARDS as SHEETS

# What a launch is taken to cost beside its work, where launches follow each other.
LAUNCH_SECONDS = 3e-6
UNITS = ("tensor core", "tf32", "fp32", "fp64")


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
        peak: operations a second of each unit, of dense matrices; fp32 and fp64 without tensor cores.
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


def _card(name: str, known: str, dtype: str, flash: bool = True) -> Card:
    """A card of our data sheets, under the name that it has in tables."""
    sheet = next(card for card in SHEETS if card.name == known)
    # Of TF32 the data sheets print half as much, of cards that have it: those with bfloat16.
    tf32 = sheet.half / 2 if sheet.has_bf16 else sheet.fp32
    peak = dict(zip(UNITS, (sheet.half, tf32, sheet.fp32, sheet.fp64), strict=True))
    model = f"NVIDIA's data sheet: {sheet.sheet}"
    return Card(name, model, dtype, sheet.bandwidth, peak, sheet.multiprocessors, flash)


CARDS = (
    _card("V100", "V100", "float16", flash=False),
    _card("A100", "A100-40", "bfloat16"),
    _card("H100", "H100", "bfloat16"),
    _card("H200", "H200", "bfloat16"),
)
