"""The trials of the recipe for small budgets: a grid of its choices, one change at a time, seeds, and ever longer runs.

Three sets of rows never meet: models train on `train`, rates are chosen on `validation`, and the figures that the
tables report of a chosen point, of the seeds and of the curve are those of `test`.
"""

import functools
import re
from pathlib import Path

from begun import digest
from learned.cases import (
    CONFIGS,
    SINGLE,
    TEXT_BYTES,
    TEXT_LENGTH,
    TWO_SEEDS,
    Case,
    half_the_layers,
    model_file,
    text_folder,
    write_part,
)
from learned.recipe_points import (
    BATCH_CHANGES,
    BATCH_ROW,
    BATCH_TOKENS,
    CHANGED,
    CONFIRMED,
    CONFIRMED_OF_ONE,
    FACTORS_LENGTHS,
    FACTORS_ROW,
    GRID_ROWS,
    LARGER_CHANGES,
    LARGER_MODEL,
    LARGER_ROW,
    LONGER_ROWS,
    LONGER_TOKENS,
    MASKS,
    OF_ONE,
    OPTIMIZERS,
    OPTIONS,
    RATES,
    SHARES,
    Change,
    Point,
    factor_changes,
)

from longmix.data_prep.manifest import Manifest
from longmix.modeling import MODEL_TYPES
from longmix.trainer.settings.run_file import read_settings

RECIPE = CONFIGS / "recipes" / "small_budget.yaml"
GRID, CHANGES, CONFIRM, LONGER, LARGER, BATCHES, FACTORS, SEEDS, CURVE = TRIALS = (
    *("grid", "changes", "confirm", "longer", "larger"),
    *("batches", "factors", "seeds", "curve"),
)
# These are tried at half the tokens of the table of text.
SHORT = (GRID, CHANGES, LARGER)
SEED_NUMBERS = range(5)
# The figure by which rates are chosen.
CHOSEN_BY = "validation_masked_accuracy"
# Of all models, whatever they are trained with, and of counting.
EVALUATION_MASK = 0.15
# Bytes of the corpus, from its beginning: the text of the curve (about 20 million tokens, of which the 2 million of the
# other trials are the first) and, each behind a gap in which an article can end, the rows held out.
CURVE_BYTES = 70_400_000
GAP_BYTES = 100_000
CHOOSING_BYTES, REPORTED_BYTES = 500_000, 700_000
CORPUS_BYTES = CURVE_BYTES + 2 * GAP_BYTES + CHOOSING_BYTES + REPORTED_BYTES
# Tokens of the curve's runs: each goes to its own end, and the next one runs if this one has not passed the bigram.
LENGTHS = (0.5e6, 1e6, 2e6, 4e6, 8e6, 16e6)
BYTES_PER_TOKEN = 3.5
# What `--plan` counts with, before there are data: tokens of a run, and those that it evaluates on.
TOKENS = dict.fromkeys(SHORT, TEXT_BYTES / BYTES_PER_TOKEN / 2)
TOKENS |= dict.fromkeys((CONFIRM, FACTORS, SEEDS), TEXT_BYTES / BYTES_PER_TOKEN)
TOKENS |= {LONGER: LONGER_TOKENS, BATCHES: BATCH_TOKENS, CURVE: sum(LENGTHS) / len(LENGTHS)}
EVALUATED = (CHOOSING_BYTES + REPORTED_BYTES) / BYTES_PER_TOKEN
# Forward alone, beside forward and backward.
EVALUATION_COST = 1 / 3


def table_of(trial: str) -> str:
    """Its name as `Case.table`."""
    return f"recipe {trial}"


def recipe_folder(work: Path) -> Path:
    """The data of the curve, with the rows held out from all trials."""
    return work / "data" / "recipes"


def recipe_command(work: Path, corpus: Path) -> list[str]:
    """`longmix prepare` of the long text and of the rows held out, with the tokenizer of the short one."""
    data = work / "data"
    first_held_out = CURVE_BYTES + GAP_BYTES
    parts = {
        "source": (data / "recipes-train.txt", 0, CURVE_BYTES),
        "validation": (data / "recipes-validation.txt", first_held_out, CHOOSING_BYTES),
        "test": (data / "recipes-test.txt", first_held_out + CHOOSING_BYTES + GAP_BYTES, REPORTED_BYTES),
    }
    words = ["prepare", "text", "--output", str(recipe_folder(work))]
    for option, (target, first, size) in parts.items():
        write_part(corpus, target, first, size)
        words += [f"--{option}", str(target)]
    words += ["--tokenizer", str(text_folder(work) / "tokenizer"), "--sequence-length", str(TEXT_LENGTH)]
    return [*words, "--packing", "one-per-row", "--workers", "1"]


def rows_folder(work: Path, length: int) -> Path:
    """The short text, and the rows held out, in rows of another length."""
    return work / "data" / f"rows-{length}"


def rows_commands(work: Path) -> list[list[str]]:
    """`longmix prepare` of it in rows of the other lengths of FACTORS_LENGTHS, behind the two others."""
    data = work / "data"
    words = ["--source", str(data / "corpus.txt"), "--tokenizer", str(text_folder(work) / "tokenizer")]
    for split in ("validation", "test"):
        words += [f"--{split}", str(data / f"recipes-{split}.txt")]
    words += ["--packing", "one-per-row", "--workers", "1"]
    return [
        ["prepare", "text", "--output", str(rows_folder(work, length)), "--sequence-length", str(length), *words]
        for length in FACTORS_LENGTHS
        if length != TEXT_LENGTH
    ]


def rates_of(work: Path, row: str, optimizer: str, mask: float) -> list[float]:
    """The rates to try, ascending: beside those of RATES, doubled or halved ones, until the best lies between others.

    The last of them may have no record yet.
    """
    rates = list(RATES[optimizer])
    while True:
        found = {rate: grid_case(work, Point(row, optimizer, mask, rate), TWO_SEEDS[0]).record() for rate in rates}
        if None in found.values():
            return rates
        accuracies = [found[rate][CHOSEN_BY] for rate in rates]
        # Better than all others: models that all know nothing are no reason to go on.
        if accuracies[-1] > max(accuracies[:-1]):
            rates.append(2 * rates[-1])
        elif accuracies[0] > max(accuracies[1:]):
            rates.insert(0, rates[0] / 2)
        else:
            return rates


def grid_points(work: Path) -> list[Point]:
    return [
        Point(row, optimizer, mask, rate)
        for row in GRID_ROWS
        for optimizer in OPTIMIZERS
        for mask in MASKS
        for rate in rates_of(work, row, optimizer, mask)
    ]


def grid_case(work: Path, point: Point, seed: int) -> Case:
    """The recipe with a point's optimizer, rate and mask, on half of the short text."""
    name = f"{point.optimizer.replace(', matrices at ', '-')}-{point.rate:g}-mask-{point.mask:g}-seed-{seed}"
    changes = (
        *OPTIONS[point.optimizer],
        f"optim.lr={point.rate:g}",
        f"objective.mask_probability={point.mask:g}",
    )
    return _case(work, GRID, point.row, name, seed, changes, f"{point.words}, seed {seed}")


def grid_cases(work: Path) -> dict[Point, Case]:
    """The first seed of every point that is known so far."""
    return {point: grid_case(work, point, TWO_SEEDS[0]) for point in grid_points(work)}


def chosen_points(work: Path) -> list[Point]:
    """The best rate of every row, optimizer and mask of which all rates have been tried, by the validation rows.

    A rate whose run has failed has no record, and so leaves its choice open.
    """
    found = {point: case.record() for point, case in grid_cases(work).items()}
    best: dict[tuple, Point] = {}
    for point, record in found.items():
        rates = [found[other] for other in found if other.choices == point.choices]
        if None in rates:
            continue
        known = best.get(point.choices)
        if known is None or record[CHOSEN_BY] > found[known][CHOSEN_BY]:
            best[point.choices] = point
    return list(best.values())


def chosen_cases(work: Path) -> dict[Point, list[Case]]:
    """The seeds of every chosen point; the first of them is a run of the grid."""
    return {point: [grid_case(work, point, seed) for seed in TWO_SEEDS] for point in chosen_points(work)}


def change_cases(work: Path) -> dict[str, dict[str, list[Case]]]:
    """Row -> words -> the seeds of the recipe with one thing changed."""
    return {row: _seeds(work, CHANGES, row, (*CHANGED, *OF_ONE.get(row, ()))) for row in MODEL_TYPES}


def confirm_cases(work: Path) -> dict[str, dict[str, list[Case]]]:
    """Row -> words -> the seeds of the recipe with what helped, on all of the short text."""
    return {row: _seeds(work, CONFIRM, row, (*CONFIRMED, *CONFIRMED_OF_ONE.get(row, ()))) for row in MODEL_TYPES}


def longer_cases(work: Path) -> dict[str, dict[str, list[Case]]]:
    """Row -> words -> the seeds of the recipe with a share of masked tokens, on the beginning of the long text."""
    return {row: _seeds(work, LONGER, row, SHARES, LONGER_TOKENS) for row in LONGER_ROWS}


def larger_cases(work: Path) -> dict[str, dict[str, list[Case]]]:
    """Row -> words -> the seeds of the recipe, changed, for a larger model."""
    return {LARGER_ROW: _seeds(work, LARGER, LARGER_ROW, LARGER_CHANGES)}


def batch_cases(work: Path) -> dict[str, dict[str, list[Case]]]:
    """Row -> words -> the seeds of the recipe in larger steps with a rate, on the beginning of the long text."""
    return {BATCH_ROW: _seeds(work, BATCHES, BATCH_ROW, BATCH_CHANGES, BATCH_TOKENS)}


def _seeds(
    work: Path, trial: str, row: str, changes: tuple[Change, ...], tokens: float | None = None
) -> dict[str, list[Case]]:
    """Words -> the seeds of each change."""
    return {
        change.words: [
            _case(
                *(work, trial, row, f"{_name(change)}-seed-{seed}", seed),
                *(change.arguments, _of_seed(change.words, seed), tokens),
            )
            for seed in TWO_SEEDS
        ]
        for change in changes
    }


def _of_seed(words: str, seed: int) -> str:
    return f"{words}, seed {seed}"


def factor_cases(work: Path) -> dict[int, dict[str, list[Case]]]:
    """Length of rows -> words -> the seeds of the recipe with another number of Paramixer's factors."""

    def case(length: int, change: Change, seed: int) -> Case:
        name, words = f"{length}-{_name(change)}-seed-{seed}", f"rows of {length}, {_of_seed(change.words, seed)}"
        return _case(work, FACTORS, FACTORS_ROW, name, seed, change.arguments, words, length=length)

    return {
        length: {change.words: [case(length, change, seed) for seed in TWO_SEEDS] for change in factor_changes(length)}
        for length in FACTORS_LENGTHS
    }


def _name(change: Change) -> str:
    """Of a folder."""
    return re.sub(r"[^a-z0-9.-]+", "-", change.words.lower())


def seed_cases(work: Path) -> dict[str, list[Case]]:
    """The recipe as it is shipped, for every mixer, on the short text."""
    return {
        row: [_case(work, SEEDS, row, f"seed-{seed}", seed, (), f"seed {seed}") for seed in SEED_NUMBERS]
        for row in MODEL_TYPES
    }


def curve_cases(work: Path) -> dict[str, dict[float, list[Case]]]:
    """Row -> tokens, ascending -> the seeds of the recipe as it is shipped, on so much of the long text."""
    lengths = [length for length in LENGTHS if length <= Manifest.load(_train(work, CURVE)).tokens]

    def case(row: str, length: float, seed: int) -> Case:
        name, words = f"{_words(length)}-seed-{seed}", _of_seed(_words(length), seed)
        return _case(work, CURVE, row, name, seed, (), words, length)

    return {row: {length: [case(row, length, seed) for seed in TWO_SEEDS] for length in lengths} for row in MODEL_TYPES}


def _words(tokens: float) -> str:
    return f"{tokens / 1e6:g}M"


def batch_of(work: Path, trial: str) -> int:
    """Samples of a step."""
    return _sizes(RECIPE, _train(work, trial))[0]


def steps_of(
    work: Path, trial: str, tokens: float | None = None, batch: int | None = None, length: int = TEXT_LENGTH
) -> int:
    """Steps in which a trial reads so many tokens of its text; None: all of them, once. Short trials read half of it.

    `batch`: samples of a step, if not the recipe's. `length`: of rows.
    """
    shipped, samples, there = _sizes(RECIPE, _train(work, trial, length))
    if tokens is not None:
        samples = round(samples * tokens / there)
    return samples // ((batch or shipped) * (2 if trial in SHORT else 1))


@functools.cache
def _sizes(recipe: Path, train: Path) -> tuple[int, int, int]:
    """Samples of a step of the recipe; samples and tokens of the data."""
    manifest = Manifest.load(train)
    return read_settings([str(recipe)], []).values["batch"]["samples"], manifest.samples, manifest.tokens


@functools.cache
def _digest(recipe: Path, model: Path) -> str:
    return digest(recipe, model)[:8]


def _train(work: Path, trial: str, length: int = TEXT_LENGTH) -> Path:
    if length != TEXT_LENGTH:
        return rows_folder(work, length) / "train"
    return (recipe_folder(work) if trial in (LONGER, BATCHES, CURVE) else text_folder(work)) / "train"


def _case(
    work: Path,
    trial: str,
    row: str,
    name: str,
    seed: int,
    changes: tuple[str, ...],
    variant: str,
    tokens: float | None = None,
    length: int = TEXT_LENGTH,
) -> Case:
    file = CONFIGS / "model" / f"{LARGER_MODEL}.yaml" if trial == LARGER else model_file(row)
    # A run of another recipe or model is another run.
    folder = work / "runs" / "recipes" / _digest(RECIPE, file) / trial / row / name
    held_out = recipe_folder(work) if length == TEXT_LENGTH else rows_folder(work, length)
    batch = next((int(text.partition("=")[2]) for text in changes if text.startswith("batch.samples=")), None)
    steps = steps_of(work, trial, tokens, batch, length)
    model = (str(file),) if trial == LARGER else (str(file), half_the_layers(row))
    arguments = (
        *(str(RECIPE), *model),
        *(f"data.train={_train(work, trial, length)}", f"run.dir={folder}", f"run.seed={seed}", *changes),
        *(f"data.eval={held_out / 'validation'}", f"data.test={held_out / 'test'}"),
        # Evaluated once, at the end, so that this is the model which is read on the test rows.
        *(f"optim.max_steps={steps}", f"checkpoint.every_steps={steps}", f"eval.every_steps={steps}"),
        *("checkpoint.best={metric: loss, mode: min}", "eval.samples=null"),
        *(f"eval.mask_probability={EVALUATION_MASK}", "precision=bf16", *SINGLE),
    )
    return Case(table_of(trial), row, 0, folder, arguments, variant)


def planned(rows: list[str] | None, trials: list[str]) -> list[tuple[str, str, int, float]]:
    """(trial, row, runs, tokens computed by them as if all were trained on) of all trials, finished or not.

    The grid's rates beyond the ends of RATES are not among them.
    """
    grid = sum(len(MASKS) * (len(rates) + len(TWO_SEEDS) - 1) for rates in RATES.values())
    runs = {
        GRID: dict.fromkeys(GRID_ROWS, grid),
        CHANGES: {row: (len(CHANGED) + len(OF_ONE.get(row, ()))) * len(TWO_SEEDS) for row in MODEL_TYPES},
        CONFIRM: {row: (len(CONFIRMED) + len(CONFIRMED_OF_ONE.get(row, ()))) * len(TWO_SEEDS) for row in MODEL_TYPES},
        LONGER: dict.fromkeys(LONGER_ROWS, len(SHARES) * len(TWO_SEEDS)),
        LARGER: {LARGER_ROW: len(LARGER_CHANGES) * len(TWO_SEEDS)},
        BATCHES: {BATCH_ROW: len(BATCH_CHANGES) * len(TWO_SEEDS)},
        FACTORS: {FACTORS_ROW: sum(len(factor_changes(length)) for length in FACTORS_LENGTHS) * len(TWO_SEEDS)},
        SEEDS: dict.fromkeys(MODEL_TYPES, len(SEED_NUMBERS)),
        CURVE: dict.fromkeys(MODEL_TYPES, len(LENGTHS) * len(TWO_SEEDS)),
    }
    return [
        (trial, row, count, count * (TOKENS[trial] + EVALUATION_COST * EVALUATED))
        for trial in trials
        for row, count in runs[trial].items()
        if rows is None or row in rows
    ]
