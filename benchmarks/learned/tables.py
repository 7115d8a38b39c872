"""The tables of docs/learning.md, drawn from the runs that have finished."""

import json
from pathlib import Path

import tables
from learned import recipe_tables
from learned.cases import CONTROL, DISTANCES, TASKS, Case, probe_cases, text_cases, text_folder

from longmix.data_prep.files import write_text
from longmix.modeling import MODEL_TYPES
from longmix.trainer.settings.sections import EVALUATION_MASK_PROBABILITY
from longmix.trainer.tables.figures import ABSENT, percent

COMMAND = "python benchmarks/learning.py --work FOLDER --corpus FILE"
UNITS = {
    "accuracy": "fraction",
    "masked_accuracy": "fraction",
    "loss": "nats",
    "validation_masked_accuracy": "fraction",
    "validation_loss": "nats",
    "parameters": "parameters",
    "tokens_per_second": "tokens/s",
}
REACHED = 0.9


def redraw(path: Path, work: Path) -> None:
    """Put every table of which there are figures between its marks in the document."""
    text = path.read_text(encoding="utf-8")
    probes = {(case.table, case.distance, case.row): case.record() for case in probe_cases(work)}
    probes = {key: found for key, found in probes.items() if found is not None}
    if probes:
        text = tables.replace(text, "probes", _probe_table(probes))
        text = tables.replace(text, "influence", _influence_table(probes))
    if (work / "baselines.json").is_file() and (text_folder(work) / "train" / "manifest.json").is_file():
        text = tables.replace(text, "text", _text_table(work, text_cases(work)))
    write_text(path, recipe_tables.redraw(text, work))


def _probe_table(probes: dict) -> str:
    """Accuracy in percent; what misses REACHED in italics."""
    header = ["", *(f"{task} {distance}" for task in TASKS for distance in DISTANCES)]
    rows = []
    for row in ("transformer", *(name for name in MODEL_TYPES if name != "transformer"), CONTROL):
        cells = []
        for task in TASKS:
            for distance in DISTANCES:
                found = probes.get((task, distance, row))
                cells.append(ABSENT if found is None else _percent(found["accuracy"], row != CONTROL))
        rows.append([row if row == CONTROL else f"`{row}`", *cells])
    made = tables.measured(found["made"] for found in probes.values())
    return f"{tables.draw(header, rows)}\n\n{made}"


def _percent(value: float, mark: bool) -> str:
    return f"*{percent(value)}*" if mark and value < REACHED else percent(value)


def _influence_table(probes: dict) -> str:
    """Each mixer before training, and after training to copy, where it missed."""
    header = ["", "", "accuracy", *(f"at {distance}" for distance in (1, *DISTANCES))]
    rows = []
    for row in MODEL_TYPES:
        copies = {distance: probes.get(("copy", distance, row)) for distance in DISTANCES}
        copies = {distance: found for distance, found in copies.items() if found is not None}
        if not copies:
            continue
        farthest = copies[max(copies)]
        rows.append([f"`{row}`", "untrained", "", *_curve(farthest["influence_before"])])
        for distance, found in copies.items():
            if found["accuracy"] < REACHED:
                rows.append(["", f"copy {distance}", _percent(found["accuracy"], True), *_curve(found["influence"])])
    return tables.draw(header, rows)


def _curve(influence: dict[str, float]) -> list[str]:
    return [f"{influence[str(distance)]:.1e}" if str(distance) in influence else "" for distance in (1, *DISTANCES)]


def _text_table(work: Path, cases: list[Case]) -> str:
    counted = json.loads((work / "baselines.json").read_text(encoding="utf-8"))
    rows = [
        [name, percent(figures["masked_accuracy"]), _number(figures.get("loss")), "", "", ""]
        for name, figures in counted["rows"].items()
    ]
    bigram = counted["rows"]["interpolated bigram"]["masked_accuracy"]
    records = {case.row: case.record() for case in cases}
    for row, found in sorted(records.items(), key=lambda item: item[0] != "transformer"):
        if found is None:
            continue
        beyond = 100 * (found["masked_accuracy"] - bigram)
        rows.append(
            [
                f"`{row}`",
                percent(found["masked_accuracy"]),
                _number(found["loss"]),
                f"{beyond:+.1f}",
                f"{found['parameters'] / 1e6:.2f} M ({found['parameters_outside_embeddings'] / 1e6:.2f} M)",
                f"{found['tokens_per_second']:,.0f}",
            ]
        )
    header = ["", "masked accuracy, %", "loss", "points beyond the bigram", "parameters", "tokens/s"]
    about = counted["about"]
    source = (
        f"Text: the first {about['bytes'] / 1e6:.1f} MB of {about['corpus']}, {about['tokens']:,} tokens to train on, "
        f"a vocabulary of {about['vocabulary']:,}; {about['masked']:,} positions to evaluate at, "
        f"{100 * EVALUATION_MASK_PROBABILITY:g} % of the tokens. "
    )
    made = tables.measured((found["made"] for found in records.values() if found is not None), source)
    return f"{tables.draw(header, rows)}\n\n{made}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
