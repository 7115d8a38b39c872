"""The model of GPUs, corrected by what an H100 took for each kernel: docs/results/h100.

A kernel's factor is what it took there over what the model says for it there; the model's time on another card is
multiplied with it. This says how slow a kernel is for what it moves and computes, and that it is so everywhere.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from record import RESULTS

from .cards import CARDS, Launch
from .layers import BASELINE, fields_of

MEASURED = RESULTS.parents[1] / "docs" / "results" / "h100" / "launches.csv"
MEASURED_ON = "H100"
LIBRARY = "PyTorch's"  # the kernels that are not ours
# By the model there, milliseconds that a layer's library kernels took more when it was measured: wavspa's four copies
# of 50 MB, which put bands side by side (until 62efc0b), and converter's sum of two gradients of the tokens, but not
# paramixer's GELU that is made again (since 6f285a9).
MORE = {"wavspa": 0.072, "converter": 0.018, "paramixer": -0.015}
# Kernels that are part of another since: that one is taken to be as slow as both were.
JOINED = {"make_angles": "make_tables", "of_angles": "angle_gradients"}
# Fields of the base models that were others then: paramixer had as many factors as links to one side need.
THEN = {"paramixer": {"factors": None, "intermediate_size": 3072}}

Row = dict[str, object]


def parts_of(launches: Mapping[Launch, float]) -> dict[str, dict[str, float]]:
    """Milliseconds of each kernel by the model, on each card that takes bfloat16: {card: {kernel: milliseconds}}."""
    found: dict[str, dict[str, float]] = {}
    for card in CARDS:
        if card.dtype == "bfloat16":
            times: dict[str, float] = defaultdict(float)
            for launch, number in launches.items():
                times[_name(launch)] += 1e3 * number * card.seconds(launch, True)
            found[card.name] = dict(times)
    return found


def _name(launch: Launch) -> str:
    return LIBRARY if launch.programs is None else launch.name.removeprefix("triton ").lstrip("_")


def measured(path: Path = MEASURED) -> dict[tuple[str, bool, int], dict[str, float]]:
    """Microseconds of each kernel in a layer, documents or not, N: those of the code that comes last in the file."""
    found: dict[tuple[str, bool, int], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = row["model"], row["documents"] == "1", int(row["positions"])
            kernels, kernel = found[place][row["code"]], JOINED.get(row["kernel"], row["kernel"])
            kernels[kernel] = kernels.get(kernel, 0.0) + float(row["microseconds"])
    return {place: list(by_code.values())[-1] for place, by_code in found.items()}


class Factors:
    """How many times as long as the model says kernels took where they were measured.

    Args:
        rows: of the model, with "parts", and of the layer as it was measured with "parts as measured".
        path: what was measured.
    """

    def __init__(self, rows: Iterable[Row], path: Path = MEASURED):
        known, base = measured(path), fields_of(BASELINE)["num_hidden_layers"]
        self._apart: dict[str, set[str]] = defaultdict(set)  # kernels that were measured by themselves, of each layer
        for (layer, _, _), kernels in known.items():
            self._apart[layer] |= set(kernels)
        self._at: dict[tuple[object, ...], float] = {}
        found = defaultdict(list)
        for row in rows:
            place = row["layer"], row["documents"], row["positions"]
            by_model: dict[str, float] = defaultdict(float)
            for kernel, milliseconds in row["parts as measured"][MEASURED_ON].items():
                by_model[self._group(row["layer"], kernel)] += milliseconds
            by_model[LIBRARY] += MORE.get(row["layer"], 0.0)
            for kernel, microseconds in known.get(place, {}).items():
                if kernel in by_model:
                    # The model's layers are the baseline's in number.
                    own = fields_of(row["layer"])["num_hidden_layers"] / base
                    self._at[kernel, *place] = microseconds / 1e3 * own / by_model[kernel]
                    found[row["layer"], kernel].append(self._at[kernel, *place])
        # Of each kernel of a layer, over documents and lengths.
        self.medians = {place: median(them) for place, them in found.items()}

    def _group(self, layer: str, kernel: str) -> str:
        """With which kernels one was measured: small ones of ours with the library's."""
        return kernel if kernel in self._apart[layer] else LIBRARY

    def knows(self, layer: str) -> bool:
        """Whether a layer was measured."""
        return (layer, LIBRARY) in self.medians

    def milliseconds(self, row: Row, card: str) -> float:
        """Of a layer that was measured, on a card."""
        layer, total = row["layer"], 0.0
        for kernel, milliseconds in row["parts"][card].items():
            group = self._group(layer, kernel)
            place = group, layer, row["documents"], row["positions"]
            total += milliseconds * (self._at[place] if place in self._at else self.medians[layer, group])
        return total
