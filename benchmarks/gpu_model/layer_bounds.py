"""What layers, and each operation in all of its compiled forms, may cost on GPUs by the model; a test fails beyond it.

python -m gpu_model.layer_bounds  # in benchmarks/: counts all layers, and operations; writes the bounds
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from .cards import CARDS, Launch
from .counting import counting
from .launches import CASES, POSITIONS
from .layers import MIXERS, Case, cases, count, document_lengths

# {LAYERS: {layer: {"documents" or "alone": {N: what `costs` gives}}}, OPERATIONS: what `operation_costs` gives}.
BOUNDS = Path(__file__).with_name("layer_bounds.json")
LAYERS, OPERATIONS = "layers", "operations"
CARD = next(card for card in CARDS if card.name == "A100")
# Bytes of a launch that has to keep a card busy.
LARGE = 1_000_000


def costs(case: Case) -> dict[str, object]:
    """Launches, gigabytes moved, kept and taken at most, and milliseconds of a layer on an A100 in bf16, and the fewest
    programs of a large launch; of each Triton kernel, by its name, (launches, gigabytes, 10^9 operations).
    """
    counted = count(case, torch.bfloat16, flash=True)
    memory = {"gigabytes kept": round(counted.kept / 1e9, 4), "gigabytes at most": round(counted.peak / 1e9, 4)}
    return {**memory, **_launch_costs(counted.launches, digits=2)}


def operation_costs() -> dict[str, dict[str, object]]:
    """The same but for memory of every form in which an operation is compiled (launches.py), forward and backward, in
    the last of its dtypes; of packed documents are those of 16,384 tokens in samples of 2,048.
    """
    found = {}
    for name, case in CASES.items():
        with counting(triton=True, documents=document_lengths(POSITIONS)) as launches:
            case.call(case.dtypes[-1])
        found[name] = _launch_costs(launches, digits=4)
    return found


def _launch_costs(launches: dict[Launch, float], digits: int) -> dict[str, object]:
    found = {
        "launches": sum(number * launch.launches for launch, number in launches.items()),
        "gigabytes": sum(number * launch.bytes for launch, number in launches.items()) / 1e9,
        "milliseconds": sum(1e3 * number * CARD.seconds(launch, True) for launch, number in launches.items()),
    }
    rounded: dict[str, object] = {name: round(value, digits) for name, value in found.items()}
    programs = [launch.programs for launch in launches if _is_large(launch)]
    if programs:
        rounded["programs"] = min(programs)
    kernels = sorted({launch.name for launch in launches if launch.programs is not None})
    if kernels:
        rounded["kernels"] = {name.removeprefix("triton "): _of_kernel(launches, name) for name in kernels}
    return rounded


def _of_kernel(launches: dict[Launch, float], name: str) -> list[float]:
    own = [(launch, number) for launch, number in launches.items() if launch.name == name]
    return [
        round(sum(number * launch.launches for launch, number in own), 2),
        round(sum(number * launch.bytes for launch, number in own) / 1e9, 4),
        round(sum(number * launch.operations for launch, number in own) / 1e9, 3),
    ]


def _is_large(launch: Launch) -> bool:
    return launch.programs is not None and launch.bytes > LARGE


def bounded() -> Iterator[tuple[Case, tuple[str, str, str]]]:
    """Every case that has a bound, and where this stands."""
    for case in cases(MIXERS):
        yield case, (case.layer, "documents" if case.documents else "alone", str(case.positions))


def main() -> None:
    """Count, and write BOUNDS."""
    layers: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for case, (layer, kind, positions) in bounded():
        layers.setdefault(layer, {}).setdefault(kind, {})[positions] = costs(case)
    BOUNDS.write_text(json.dumps({LAYERS: layers, OPERATIONS: operation_costs()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
