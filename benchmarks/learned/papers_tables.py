"""What benchmarks/papers.py adds to the page of `longmix report`: the search, and what no model is needed for."""

import statistics
from pathlib import Path
from typing import Any

import commands
import tables
from learned.papers_cases import Trial

from longmix.trainer.tables.figures import ABSENT, percent


def best(found: dict[Trial, float | None]) -> Trial:
    """The trial of the best accuracy; of equal ones the first. One that has failed is never the best."""
    return max((trial for trial, accuracy in found.items() if accuracy is not None), key=lambda trial: found[trial])


def search_section(found: dict[str, dict[Trial, float | None]], runs: Path) -> str:
    """A table for each task: the accuracy of every trial on validation, and how far training came with the chosen one.

    Args:
        found: name of the case, task/row -> its trials.
        runs: folder of the runs that the search has chosen.
    """
    parts = ["\n## Search\n"]
    for task in dict.fromkeys(name.split("/")[0] for name in found):
        rows, trials = [], ()
        for name in (name for name in found if name.split("/")[0] == task):
            trials, chosen = tuple(found[name]), best(found[name])
            cells = [_cell(found[name][trial], trial == chosen) for trial in trials]
            rows.append([f"`{name.split('/')[1]}`", *cells, _losses(runs / name)])
        header = ["", *(f"{trial.rate:g}, {trial.deviation:g}" for trial in trials), "training loss"]
        parts.append(f"### {task}\n\n{tables.draw(header, rows)}\n")
    parts.append(
        "Accuracy in percent on the validation split, the best of a run's evaluations, one seed: each row with every\n"
        "learning rate and standard deviation of the initial weights, for as many steps. Bold: chosen for the runs\n"
        "above. Training loss: the mean over their seeds of the first record and of the last; where it has not\n"
        "fallen, a row has never left its plateau.\n"
    )
    return "\n".join(parts)


def _cell(accuracy: float | None, is_chosen: bool) -> str:
    if accuracy is None:
        return "failed"
    return f"**{percent(accuracy)}**" if is_chosen else percent(accuracy)


def _losses(runs: Path) -> str:
    records = [commands.records(run, "train") for run in sorted(runs.glob("seed-*")) if run.is_dir()]
    if not records:
        return ABSENT
    first, last = (statistics.mean(found[place]["loss"] for found in records) for place in (0, -1))
    return f"{first:.2f} to {last:.2f}"


def bigram_section(rows: dict[str, dict[str, float]]) -> str:
    """The figures of counting, as those of the models above."""
    cells = [
        [
            name,
            f"{row['word_perplexity']:.4g}" if "word_perplexity" in row else ABSENT,
            f"{row['token_perplexity']:.4g}",
            f"{row['loss']:.3f}",
            percent(row["accuracy"], 2),
        ]
        for name, row in rows.items()
    ]
    header = ["", "word perplexity", "token perplexity", "loss", "accuracy (%)"]
    return (
        f"\n## Counting\n\n{tables.draw(header, cells)}\n\n"
        "Counted on the tokens that the first seed of the rows above has read, and evaluated on the same split. The\n"
        "bigram is a P(w) + b P(w | the token before), with weights fitted on training samples that the counts leave\n"
        "out (`trainer/objectives/causal_bigram.py`).\n"
    )


def linear_section(rows: dict[str, dict[str, Any]]) -> str:
    """The figures of `linear_baseline.score`, by data."""
    cells = [
        [data, percent(row["accuracy"]), percent(row["validation"]), row["reads"], f"{row['penalty']:g}"]
        for data, row in rows.items()
    ]
    header = ["", "accuracy (%)", "on validation", "reads", "C"]
    return (
        f"\n## Logistic regression\n\n{tables.draw(header, cells)}\n\n"
        "A logistic regression of the training samples of the rows above, on the same test split. The validation\n"
        "split has chosen its penalty, and how long the runs of tokens are of which it reads the TF-IDF weights;\n"
        "where all sequences are of one length it reads their values (`benchmarks/learned/linear_baseline.py`).\n"
    )
