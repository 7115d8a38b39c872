"""The tables of docs/learning.md about the recipe for small budgets, drawn from the trials that have finished."""

import json
import statistics
from pathlib import Path

import tables
from learned import recipe_cases
from learned.recipe_baselines import BIGRAM, SHOWN, at, passes
from learned.recipe_cases import CHANGES, CHOSEN_BY, CONFIRM, CURVE, FACTORS, GRID, LARGER, LONGER, SEEDS, TWO_SEEDS
from learned.recipe_points import (
    CHANGED,
    CONFIRMED,
    CONFIRMED_OF_ONE,
    FACTORS_LENGTHS,
    GRID_ROWS,
    LARGER_CHANGES,
    LONGER_ROWS,
    MASKS,
    OF_ONE,
    OPTIMIZERS,
    SHARES,
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
    drawing |= {LONGER: longer_table, FACTORS: factor_table, SEEDS: seed_table, CURVE: curve_table}
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
    """Validation accuracy of the recipe and of each change, and the best one of every mixer."""
    records = {
        row: {words: found for words, case in cases.items() if (found := case.record()) is not None}
        for row, cases in recipe_cases.change_cases(work).items()
    }
    records = {row: found for row, found in records.items() if found}
    if not records:
        return None
    ordered = sorted(records, key=_after_the_transformer)
    best = {row: max(found, key=lambda words: found[words][CHOSEN_BY]) for row, found in records.items()}
    rows = []
    for change in (*CHANGED, *(change for row in ordered for change in OF_ONE.get(row, ()))):
        cells = [_chosen(records[row].get(change.words), change.words == best[row]) for row in ordered]
        rows.append([change.words, *cells])
    used = [one for found in records.values() for one in found.values()]
    return f"{tables.draw(['', *(f'`{row}`' for row in ordered)], rows)}\n\n{_measured(used, counted)}"


def confirm_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy of what helped by one seed, the mean over two, and what a token takes beside the first."""
    records = {
        row: {
            words: [found for case in cases if (found := case.record()) is not None] for words, cases in changed.items()
        }
        for row, changed in recipe_cases.confirm_cases(work).items()
    }
    used = [one for changed in records.values() for found in changed.values() for one in found]
    if not used:
        return None
    # One seed says nothing here.
    records = {
        row: {words: found for words, found in changed.items() if len(found) == len(TWO_SEEDS)}
        for row, changed in sorted(records.items(), key=lambda item: _after_the_transformer(item[0]))
    }
    means = {
        row: {words: _mean(found, CHOSEN_BY) for words, found in changed.items()} for row, changed in records.items()
    }
    rows = []
    for change in (*CONFIRMED, *(change for row in records for change in CONFIRMED_OF_ONE.get(row, ()))):
        cells = []
        for found in means.values():
            mean = found.get(change.words)
            cells.append(
                ABSENT if mean is None else percent(mean) if mean < max(found.values()) else f"**{percent(mean)}**"
            )
        slower = [
            _mean(changed[CONFIRMED[0].words], "tokens_per_second") / _mean(changed[change.words], "tokens_per_second")
            for changed in records.values()
            if change.words in changed and CONFIRMED[0].words in changed
        ]
        rows.append([change.words, *cells, f"{statistics.median(slower):.2f}" if slower else ABSENT])
    header = ["", *(f"`{row}`" for row in records), "time of a token"]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def longer_table(work: Path, counted: dict) -> str | None:
    """Validation accuracy and loss of long runs with each share of masked tokens."""
    cases = recipe_cases.longer_cases(work)
    found = {row: {words: case.record() for words, case in changed.items()} for row, changed in cases.items()}
    used = [one for records in found.values() for one in records.values() if one is not None]
    if not used:
        return None
    rows = []
    for change in SHARES:
        cells = []
        for row in LONGER_ROWS:
            one = found[row][change.words]
            cells += [ABSENT] * 2 if one is None else [percent(one[CHOSEN_BY]), f"{one['validation_loss']:.2f}"]
        rows.append([change.words, *cells])
    header = ["", *(cell for row in LONGER_ROWS for cell in (f"`{row}`", "loss"))]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def _mean(found: list[dict], figure: str) -> float:
    return statistics.mean(one[figure] for one in found)


def _after_the_transformer(row: str) -> bool:
    """Sorts it before all others."""
    return row != "transformer"


def larger_table(work: Path, counted: dict) -> str | None:
    """Accuracy and loss of a larger model by the recipe and by others."""
    records = {words: case.record() for words, case in recipe_cases.larger_cases(work).items()}
    used = [found for found in records.values() if found is not None]
    if not used:
        return None
    rows = []
    for change in LARGER_CHANGES:
        found = records[change.words]
        cells = [ABSENT] * 3
        if found is not None:
            cells = [percent(found[CHOSEN_BY]), percent(found["masked_accuracy"]), f"{found['loss']:.2f}"]
        rows.append([change.words, *cells])
    header = ["", "validation, %", "test, %", "loss on test"]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def factor_table(work: Path, _counted: dict) -> str | None:
    """Validation accuracy and loss of Paramixer with other numbers of factors, by the length of rows: seeds' means."""
    cases = recipe_cases.factor_cases(work)
    found = {
        length: {words: [case.record() for case in seeds] for words, seeds in changed.items()}
        for length, changed in cases.items()
    }
    used = [one for changed in found.values() for seeds in changed.values() for one in seeds if one is not None]
    if not used:
        return None
    rows = []
    for change in factor_changes(FACTORS_LENGTHS[0]):
        cells = []
        for changed in found.values():
            these = changed[change.words]
            is_whole = None not in these
            accuracy = percent(_mean(these, CHOSEN_BY)) if is_whole else ABSENT
            cells += [accuracy, f"{_mean(these, 'validation_loss'):.2f}" if is_whole else ABSENT]
        rows.append([change.words, *cells])
    header = ["", *(cell for length in found for cell in (f"N = {length}", "loss"))]
    made = tables.measured((one["made"] for one in used), f"`{COMMAND}`. ")
    return f"{tables.draw(header, rows)}\n\n{made}"


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
                _with_deviation([100 * value for value in accuracies], 1),
                f"{percent(min(accuracies))} to {percent(max(accuracies))}",
                _with_deviation([one["loss"] for one in found.values()], 2),
                *_two([found[seed]["masked_accuracy"] for seed in TWO_SEEDS if seed in found], bigram),
            ]
        )
    used = [one for found in records.values() for one in found.values()]
    header = ["", "seeds past the plateau", "masked accuracy, %", "least to most", "loss"]
    header += ["seeds 0 and 1", "points beyond the bigram"]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def _with_deviation(values: list[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def _two(values: list[float], bigram: float) -> list[str]:
    if len(values) < len(TWO_SEEDS):
        return [ABSENT, ABSENT]
    mean = statistics.mean(values)
    return [percent(mean), f"{100 * (mean - bigram):+.1f}"]


def curve_table(work: Path, counted: dict) -> str | None:
    """Accuracy of ever longer runs, and the least tokens after which a model is past the bigram."""
    curves = {row: [case.record() for case in cases] for row, cases in recipe_cases.curve_cases(work).items()}
    used = [found for records in curves.values() for found in records if found is not None]
    if not used:
        return None
    bar = counted["curve"]
    lengths = [length for length in recipe_cases.LENGTHS if length <= counted["about"]["curve_tokens"]]
    rows = [["interpolated bigram of as many tokens", *(percent(at(bar, length)[0]) for length in lengths), ""]]
    for row, records in sorted(curves.items(), key=lambda item: _after_the_transformer(item[0])):
        cells = [ABSENT if found is None else percent(found["masked_accuracy"]) for found in records]
        passed = [
            f"{length / 1e6:g} M"
            for length, found in zip(lengths, records, strict=True)
            if found is not None and passes(found, bar, length)
        ]
        rows.append([f"`{row}`", *cells, *(passed[:1] or ["not yet"])])
    header = ["", *(f"{length / 1e6:g} M" for length in lengths), "past the bigram with"]
    return f"{tables.draw(header, rows)}\n\n{_measured(used, counted)}"


def _measured(found, counted: dict) -> str:
    about = counted["about"]
    source = f"{about['masked']:,} positions to evaluate at, a vocabulary of {about['vocabulary']:,}. `{COMMAND}`. "
    return tables.measured((one["made"] for one in found), source)
