"""What layers may cost on GPUs by the model; a test fails beyond it.

python -m gpu_model.layer_bounds  # in benchmarks/: counts the layers of BOUNDED, and writes the bounds
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from .cards import CARDS, Launch
from .layers import BASELINE, LIFTING, Case, cases, count

# {layer: {"documents" or "alone": {N: what `costs` gives}}}: of layers, and of each operation in them.
BOUNDS = Path(__file__).with_name("layer_bounds.json")
BOUNDED = (BASELINE, "flt", "paramixer", "converter", "wavspa", LIFTING, "s3attention")
CARD = next(card for card in CARDS if card.name == "A100")
# Bytes of a launch that has to keep a card busy.
LARGE = 1_000_000


def costs(case: Case) -> dict[str, object]:
    """Launches, gigabytes moved, kept and taken at most, and milliseconds of a layer on an A100 in bf16, and the fewest
    programs of a large launch; of each Triton kernel, by its name, (launches, gigabytes, 10^9 operations).
    """
    counted = count(case, torch.bfloat16, flash=True)
    launches = counted.launches
    found = {
        "launches": sum(number * launch.launches for launch, number in launches.items()),
        "gigabytes": sum(number * launch.bytes for launch, number in launches.items()) / 1e9,
        "gigabytes kept": counted.kept / 1e9,
        "gigabytes at most": counted.peak / 1e9,
        "milliseconds": sum(1e3 * number * CARD.seconds(launch, True) for launch, number in launches.items()),
    }
    programs = [launch.programs for launch in launches if _is_large(launch)]
    digits = {"gigabytes kept": 4, "gigabytes at most": 4}
    rounded: dict[str, object] = {name: round(value, digits.get(name, 2)) for name, value in found.items()}
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
    for case in cases(BOUNDED):
        yield case, (case.layer, "documents" if case.documents else "alone", str(case.positions))


def main() -> None:
    """Count, and write BOUNDS."""
    bounds: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for case, (layer, kind, positions) in bounded():
        bounds.setdefault(layer, {}).setdefault(kind, {})[positions] = costs(case)
    BOUNDS.write_text(json.dumps(bounds, indent=1) + "\n")


if __name__ == "__main__":
    main()
