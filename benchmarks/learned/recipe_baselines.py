"""Counting at the positions at which the recipe's trials are reported: what a model must pass."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from learned.cases import text_folder
from learned.recipe_cases import CURVE, EVALUATION_MASK, LENGTHS, batch_of, recipe_folder

from longmix.data_prep.files import write_json
from longmix.trainer.objectives.masking import TokenMasker
from longmix.trainer.objectives.neighbour_bigram import NeighbourBigram, Positions, most_frequent, positions
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.sections import BatchSection, DataSection, ObjectiveSection
from longmix.trainer.settings.shuffling import settled

FILE = "recipe-baselines.json"
BIGRAM = "interpolated bigram"
SHOWN = "token shown there, or the most frequent"


def count(work: Path) -> dict:
    """The baselines, counted once.

    `rows`: of the short text, by name; `curve`: [tokens, masked accuracy, loss] of the bigram of the rows that a run of
    the curve has read by then; `about`: sizes.
    """
    path = work / FILE
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    short = ShardedDataset(text_folder(work) / "train")
    long, reported = (ShardedDataset(recipe_folder(work) / split) for split in ("train", "test"))
    section = ObjectiveSection(mask_probability=EVALUATION_MASK)
    masker = make_objective(section, 0, short.manifest, None).masker
    where = positions(reported, np.arange(len(reported)), masker, is_training=False)
    bigram = NeighbourBigram(short, np.arange(len(short)), masker)
    made = {
        "rows": {**most_frequent(bigram, where), BIGRAM: bigram.evaluate(where)},
        "curve": _curve(long, batch_of(work, CURVE), masker, where),
        "about": {
            "tokens": short.manifest.tokens,
            "curve_tokens": long.manifest.tokens,
            "masked": len(where),
            "vocabulary": short.manifest.vocab_size,
        },
    }
    write_json(path, made)
    return made


def figures(made: dict) -> Iterator[tuple[str, str, float]]:
    """(case, figure, value) of all that was counted."""
    curve = {
        f"{BIGRAM}, {tokens / 1e6:.3g} M tokens": {"masked_accuracy": accuracy, "loss": loss}
        for tokens, accuracy, loss in made["curve"]
    }
    for name, found in {**made["rows"], **curve}.items():
        for figure, value in found.items():
            yield f"recipe counting, {name}", figure, value


def _curve(dataset: ShardedDataset, batch: int, masker: TokenMasker, where: Positions) -> list[list[float]]:
    """The bigram of ever more rows, in the order in which a run of seed 0 reads them."""
    size = len(dataset)
    ranges = settled(DataSection(train=""), BatchSection(batch))
    order = RunOrder([size], [1.0], ranges.partitions, ranges.window, 0, ranges.order).draw(0, size).sample
    per_row = dataset.manifest.tokens / size
    points = []
    for rows in [*(round(mark / per_row) for mark in LENGTHS if mark < dataset.manifest.tokens), size]:
        figures = NeighbourBigram(dataset, order[:rows], masker).evaluate(where)
        points.append([rows * per_row, figures["masked_accuracy"], figures["loss"]])
    return points


def at(curve: list[list[float]], tokens: float) -> tuple[float, float]:
    """(masked accuracy, loss) of a curve at a number of tokens, linear in their logarithm between its points."""
    known, *figures = np.asarray(curve, dtype=float).T
    accuracy, loss = (float(np.interp(np.log(tokens), np.log(known), column)) for column in figures)
    return accuracy, loss


def passes(found: list[dict], bar: list[list[float]], tokens: float) -> bool:
    """Whether the seeds of a model that have read so many tokens predict more of the masked ones, on the mean, than a
    bigram of as many.
    """
    return statistics.mean(one["masked_accuracy"] for one in found) > at(bar, tokens)[0]
