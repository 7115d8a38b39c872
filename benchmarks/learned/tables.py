"""The tables of docs/learning.md, drawn from the runs that have finished."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import tables
from learned import recipe_tables
from learned.cases import CONTROL, DISTANCES, TASKS, TWO_SEEDS, probe_cases
from learned.recipe_tables import with_deviation

from longmix.data_prep.files import write_text
from longmix.modeling import MODEL_TYPES
from longmix.trainer.tables.figures import ABSENT

COMMAND = "python benchmarks/learning.py --work FOLDER"
UNITS = {
    "accuracy": "fraction",
    "masked_accuracy": "fraction",
    "loss": "nats",
    "validation_masked_accuracy": "fraction",
    "validation_loss": "nats",
    "tokens_per_second": "tokens/s",
}
# Of probes: name in a record, in words.
INFLUENCES = {"influence_before": "influence before training", "influence": "influence"}
REACHED = 0.9


def recorded(values: dict) -> Iterator[tuple[str, float, str]]:
    """(figure, value, unit) of what benchmarks/results.csv gets of a run."""
    for figure, unit in UNITS.items():
        if figure in values:
            yield figure, values[figure], unit
    for name, words in INFLUENCES.items():
        for distance, value in values.get(name, {}).items():
            # At 0 it is 1 by definition.
            if int(distance) > 0:
                yield f"{words} at {distance}", value, "ratio"


def redraw(path: Path, work: Path) -> None:
    """Put every table of which there are figures between its marks in the document."""
    text = path.read_text(encoding="utf-8")
    probes: dict[tuple, list[dict]] = {}
    for case in probe_cases(work):
        if (found := case.record()) is not None:
            probes.setdefault((case.table, case.distance, case.row), []).append(found)
    probes = {key: seeds for key, seeds in probes.items() if len(seeds) == len(TWO_SEEDS)}
    if probes:
        text = tables.replace(text, "probes", _probe_table(probes))
        text = tables.replace(text, "influence", _influence_table(probes))
    write_text(path, recipe_tables.redraw(text, work))


def _probe_table(probes: dict) -> str:
    """Accuracy in percent, mean and standard deviation over the seeds; where the mean misses REACHED in italics."""
    header = ["", *(f"{task} {distance}" for task in TASKS for distance in DISTANCES)]
    rows = []
    for row in ("transformer", *(name for name in MODEL_TYPES if name != "transformer"), CONTROL):
        cells = []
        for task in TASKS:
            for distance in DISTANCES:
                found = probes.get((task, distance, row))
                cells.append(ABSENT if found is None else _accuracy(found, row != CONTROL))
        rows.append([row if row == CONTROL else f"`{row}`", *cells])
    made = tables.measured(found["made"] for seeds in probes.values() for found in seeds)
    return f"{tables.draw(header, rows)}\n\n{made}"


def _accuracy(seeds: list[dict], mark: bool) -> str:
    values = [found["accuracy"] for found in seeds]
    shown = with_deviation([100 * value for value in values], 1)
    return f"*{shown}*" if mark and statistics.mean(values) < REACHED else shown


def _influence_table(probes: dict) -> str:
    """Each mixer before training, and after training to copy, where it missed: means over the seeds."""
    header = ["", "", "accuracy", *(f"at {distance}" for distance in (1, *DISTANCES))]
    rows = []
    for row in MODEL_TYPES:
        copies = {distance: probes.get(("copy", distance, row)) for distance in DISTANCES}
        copies = {distance: found for distance, found in copies.items() if found is not None}
        if not copies:
            continue
        farthest = copies[max(copies)]
        rows.append([f"`{row}`", "untrained", "", *_curve(farthest, "influence_before")])
        for distance, found in copies.items():
            if statistics.mean(one["accuracy"] for one in found) < REACHED:
                rows.append(["", f"copy {distance}", _accuracy(found, True), *_curve(found, "influence")])
    return tables.draw(header, rows)


def _curve(seeds: list[dict], name: str) -> list[str]:
    curves = [found[name] for found in seeds]
    return [
        f"{statistics.mean(curve[str(distance)] for curve in curves):.1e}" if str(distance) in curves[0] else ""
        for distance in (1, *DISTANCES)
    ]
