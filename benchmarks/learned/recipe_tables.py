"""The tables of docs/learning.md about the recipe for small budgets, drawn from the trials that have finished."""

import itertools
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

import tables
from learned import recipe_cases
from learned.recipe_baselines import BIGRAM, SHOWN, at, passes
from learned.recipe_cases import (
    BATCHES,
    CHANGES,
    CHOSEN_BY,
    CONFIRM,
    CURVE,
    FACTORS,
    GRID,
    LARGER,
    LONGER,
    SEEDS,
    TWO_SEEDS,
)
from learned.recipe_points import (
    BATCH_CHANGES,
    BATCH_ROW,
    BATCH_SAMPLES,
    CHANGED,
    CONFIRMED,
    CONFIRMED_OF_ONE,
    FACTORS_LENGTHS,
    GRID_ROWS,
    LARGER_CHANGES,
    LARGER_ROW,
    MASKS,
    OF_ONE,
    OPTIMIZERS,
    SHARES,
    Change,
    Point,
    factor_changes,
)

from longmix.trainer.tables.figures import ABSENT, percent

COMMAND = "python benchmarks/learning.py --part recipes --work FOLDER --corpus FILE"
# A run has left the plateau when it knows this much more than what the masked position itself shows.
MARGIN = 0.02


def redraw(text: str, work: Path) -> str:
    """The document with the tables of which there are figures."""
    baselines = work / "recipe-baselines.json"
    if not baselines.is_file():
        return text
    counted = json.loads(baselines.read_text(encoding="utf-8"))
    drawing = {GRID: grid_table, CHANGES: change_table, CONFIRM: confirm_table, LARGER: larger_table}
    drawing |= {LONGER: longer_table, BATCHES: batch_table, FACTORS: factor_table, SEEDS: seed_table}
    drawing |= {CURVE: curve_table}
    for trial, draw in drawing.items():
        drawn = draw(work, counted)
        if drawn is not None:
            text = tables.replace(text, f"recipe-{trial}", drawn)
    return text


def grid_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy at each rate, and at the chosen one the accuracy and loss that are reported."""
    first = {point: case.record() for point, case in recipe_cases.grid_cases(work).items()}
    if not any(first.values()):
        return None
    chosen = {point: [case.record() for case in cases] for point, cases in recipe_cases.chosen_cases(work).items()}
    rates = sorted({point.rate for point in first})
    rows, used = [], [found for found in first.values() if found is not None]
    for row in GRID_ROWS:
        for optimizer in OPTIMIZERS:
            for mask in MASKS:
                points = [Point(row, optimizer, mask, rate) for rate in rates]
                best = next((point for point in points if point in chosen), None)
                again = [] if best is None else [found for found in chosen[best] if found is not None]
                used += again
                cells = [_chosen(first.get(point), point == best) for point in points]
                rows.append([f"`{row}`", optimizer, f"{mask:g}", *cells, *_reported(again)])
    header = [
        "",
        "optimizer",
        "mask",
        *(f"validation, {rate:g}" for rate in rates),
        "test, seeds of the chosen rate",
        "their mean",
        "loss",
    ]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def _chosen(found: dict | None, is_chosen: bool) -> str:
    if found is None:
        return ABSENT
    shown = percent(found[CHOSEN_BY])
    return f"**{shown}**" if is_chosen else shown


def _reported(found: list[dict]) -> list[str]:
    if len(found) < len(TWO_SEEDS):
        return [ABSENT] * 3
    accuracies = [one["masked_accuracy"] for one in found]
    loss = statistics.mean(one["loss"] for one in found)
    return [", ".join(map(percent, accuracies)), percent(statistics.mean(accuracies)), f"{loss:.2f}"]


def change_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy of the recipe and of each change, over its seeds, and the best one of every mixer."""
    drawn = _by_row(recipe_cases.change_cases(work), (*CHANGED, *itertools.chain(*OF_ONE.values())))
    if drawn is None:
        return None
    records, rows = drawn
    header = ["", *(f"`{row}`" for row in records)]
    return f"{tables.draw(header, rows)}\n\n{_measured(_all(records.values()), counted)}"


def confirm_table(work: Path, counted: dict) -> str | None:
    """The same of what helped, tried on all of the text, and what a token takes beside the first."""
    changes = (*CONFIRMED, *itertools.chain(*CONFIRMED_OF_ONE.values()))
    drawn = _by_row(recipe_cases.confirm_cases(work), changes)
    if drawn is None:
        return None
    records, rows = drawn
    first = CONFIRMED[0].words
    for change, cells in zip(changes, rows, strict=True):
        slower = [
            _mean(changed[first], "tokens_per_second") / _mean(changed[change.words], "tokens_per_second")
            for changed in records.values()
            if change.words in changed and first in changed
        ]
        cells.append(f"{statistics.median(slower):.2f}" if slower else ABSENT)
    header = ["", *(f"`{row}`" for row in records), "time of a token"]
    return f"{tables.draw(header, rows)}\n\n{_measured(_all(records.values()), counted)}"


def _by_row(cases: dict, changes: tuple[Change, ...]) -> tuple[dict[str, dict[str, list]], list[list[str]]] | None:
    """(row -> words -> records of its seeds, lines of a table with a row of the models in each column).

    The transformer is the first; the best of each column is bold. None where no seeds have finished.
    """
    records = {row: _finished(changed) for row, changed in cases.items()}
    records = {row: records[row] for row in sorted(records, key=_after_the_transformer) if records[row]}
    if not records:
        return None
    best = {row: max(_mean(seeds, CHOSEN_BY) for seeds in found.values()) for row, found in records.items()}
    lines = []
    for change in changes:
        cells = []
        for row, found in records.items():
            seeds = found.get(change.words)
            shown = ABSENT if seeds is None else _accuracy(seeds)
            cells.append(f"**{shown}**" if seeds is not None and _mean(seeds, CHOSEN_BY) == best[row] else shown)
        lines.append([change.words, *cells])
    return records, lines


def _finished(cases: dict, fewest: int = len(TWO_SEEDS)) -> dict:
    """Key -> records of the seeds that have finished, where they are enough: one says nothing, as a rule."""
    found = {key: [one for case in seeds if (one := case.record()) is not None] for key, seeds in cases.items()}
    return {key: records for key, records in found.items() if len(records) >= fewest}


def _all(found: Iterable[dict]) -> list[dict]:
    """The records of several `_finished`."""
    return [record for changed in found for seeds in changed.values() for record in seeds]


def _accuracy(seeds: list[dict], figure: str = CHOSEN_BY) -> str:
    return with_deviation([100 * one[figure] for one in seeds], 1)


def _loss(seeds: list[dict], figure: str = "validation_loss") -> str:
    return with_deviation([one[figure] for one in seeds], 2)


def longer_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy and loss of long runs with each share of masked tokens."""
    found = {row: _finished(changed) for row, changed in recipe_cases.longer_cases(work).items()}
    if not any(found.values()):
        return None
    table = _side_by_side({f"`{row}`": seeds for row, seeds in found.items()}, SHARES)
    return f"{table}\n\n{_measured(_all(found.values()), counted)}"


def batch_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy and loss of larger steps by their rate."""
    found = _finished(recipe_cases.batch_cases(work)[BATCH_ROW])
    if not found:
        return None
    table = _side_by_side({f"{BATCH_SAMPLES} rows a step": found}, BATCH_CHANGES)
    return f"{table}\n\n{_measured(_all([found]), counted)}"


def _side_by_side(found: dict[str, dict[str, list[dict]]], changes: Iterable[Change]) -> str:
    """A row for each change, with validation accuracy and loss of each of `found`: what heads it -> words -> seeds."""
    rows = []
    for change in changes:
        seeds = [of.get(change.words) for of in found.values()]
        cells = ([ABSENT] * 2 if one is None else [_accuracy(one), _loss(one)] for one in seeds)
        rows.append([change.words, *itertools.chain(*cells)])
    return tables.draw(["", *(cell for head in found for cell in (head, "loss"))], rows)


def _mean(found: list[dict], figure: str) -> float:
    return statistics.mean(one[figure] for one in found)


def _after_the_transformer(row: str) -> bool:
    """Sorts it before all others."""
    return row != "transformer"


def larger_table(work: Path, counted: dict) -> str | None:
    """Accuracy and loss of a larger model by the recipe and by others; of one seed where the second has not finished,
    for each takes half an hour.
    """
    found = _finished(recipe_cases.larger_cases(work)[LARGER_ROW], fewest=1)
    if not found:
        return None
    rows = []
    for change in LARGER_CHANGES:
        seeds = found.get(change.words)
        cells = [ABSENT] * 3
        if seeds is not None:
            cells = [_accuracy(seeds), _accuracy(seeds, "masked_accuracy"), _loss(seeds, "loss")]
        rows.append([change.words, *cells])
    header = ["", "validation, %", "test, %", "loss on test"]
    return f"{tables.draw(header, rows)}\n\n{_measured(_all([found]), counted)}"


def factor_table(work: Path, _counted: dict) -> str | None:
    """Validation accuracy and loss of Paramixer with other numbers of factors, by the length of rows."""
    found = {length: _finished(changed) for length, changed in recipe_cases.factor_cases(work).items()}
    if not any(found.values()):
        return None
    by_length = {f"N = {length}": seeds for length, seeds in found.items()}
    table = _side_by_side(by_length, factor_changes(FACTORS_LENGTHS[0]))
    made = tables.measured((one["made"] for one in _all(found.values())), f"`{COMMAND}`. ")
    return f"{table}\n\n{made}"


def seed_table(work: Path, counted: dict) -> str | None:
    """Five seeds of the shipped recipe beside counting."""
    records = {
        row: {seed: found for seed, case in enumerate(cases) if (found := case.record()) is not None}
        for row, cases in recipe_cases.seed_cases(work).items()
    }
    if not any(records.values()):
        return None
    rows = []
    for name, figures in counted["rows"].items():
        loss = f"{figures['loss']:.2f}" if "loss" in figures else ""
        rows.append([name, "", percent(figures["masked_accuracy"]), "", loss, "", ""])
    bar = counted["rows"][SHOWN]["masked_accuracy"] + MARGIN
    bigram = counted["rows"][BIGRAM]["masked_accuracy"]
    for row, found in sorted(records.items(), key=lambda item: _after_the_transformer(item[0])):
        if not found:
            continue
        accuracies = [one["masked_accuracy"] for one in found.values()]
        rows.append(
            [
                f"`{row}`",
                f"{sum(value > bar for value in accuracies)} of {len(accuracies)}",
                with_deviation([100 * value for value in accuracies], 1),
                f"{percent(min(accuracies))} to {percent(max(accuracies))}",
                with_deviation([one["loss"] for one in found.values()], 2),
                *_two([found[seed]["masked_accuracy"] for seed in TWO_SEEDS if seed in found], bigram),
            ]
        )
    used = [one for found in records.values() for one in found.values()]
    header = ["", "seeds past the plateau", "masked accuracy, %", "least to most", "loss"]
    header += ["seeds 0 and 1", "points beyond the bigram"]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def with_deviation(values: list[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def _two(values: list[float], bigram: float) -> list[str]:
    if len(values) < len(TWO_SEEDS):
        return [ABSENT, ABSENT]
    mean = statistics.mean(values)
    return [percent(mean), f"{100 * (mean - bigram):+.1f}"]


def curve_table(work: Path, counted: dict) -> str | None:
    """Accuracy of ever longer runs, and the least tokens after which the mean of a model's seeds is past the bigram."""
    lengths = [length for length in recipe_cases.LENGTHS if length <= counted["about"]["curve_tokens"]]
    curves = {row: _finished(cases) for row, cases in recipe_cases.curve_cases(work).items()}
    if not any(curves.values()):
        return None
    bar = counted["curve"]
    rows = [["interpolated bigram of as many tokens", *(percent(at(bar, length)[0]) for length in lengths), ""]]
    for row, found in sorted(curves.items(), key=lambda item: _after_the_transformer(item[0])):
        cells = [_accuracy(found[length], "masked_accuracy") if length in found else ABSENT for length in lengths]
        passed = [f"{length / 1e6:g} M" for length, seeds in found.items() if passes(seeds, bar, length)]
        rows.append([f"`{row}`", *cells, *(passed[:1] or ["not yet"])])
    header = ["", *(f"{length / 1e6:g} M" for length in lengths), "past the bigram with"]
    return f"{tables.draw(header, rows)}\n\n{_measured(_all(curves.values()), counted)}"


def _measured(found, counted: dict) -> str:
    about = counted["about"]
    source = f"{about['masked']:,} positions to evaluate at, a vocabulary of {about['vocabulary']:,}. `{COMMAND}`. "
    return tables.measured((one["made"] for one in found), source)
