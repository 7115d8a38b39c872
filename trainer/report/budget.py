"""What the rows of one table had in common, and what they had not: budget, data, objective and selection.

Models compare only where all else was equal. What every row shares is said once, above the table; rows that differ in
more than model, batch and rate get letters, and only those of one letter compare.
"""

import json
import string
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.split_names import without_split

from ..many_runs.read import VALIDATION, Run
from ..tables.figures import ABSENT
from .settings import shortest

# Budgets are shown with these names, in this order.
COLUMNS = ("steps", "samples", "tokens seen", "batch", "rate")
# 1 to 9 and 0.1 to 0.9 are one mixture, rounding aside.
_DIGITS_OF_SHARES = 9
_SHARES = "shares of the data sets"


@dataclass(frozen=True)
class Budget:
    """What the training of a row was given; None where its runs do not say.

    Attributes:
        steps: optimizer steps.
        samples: training samples that were read, one for each time that it was.
        tokens: non-padding tokens of them, the mean over the seeds.
        batch: samples of a step.
        rate: the highest learning rate.
    """

    steps: int | None
    samples: int | None
    tokens: float | None
    batch: int | None
    rate: float | None

    @property
    def cells(self) -> dict[str, tuple[str, float | None]]:
        """Column -> (what is shown, the number that it sorts by)."""
        whole = {"steps": self.steps, "samples": self.samples, "tokens seen": self.tokens, "batch": self.batch}
        shown = {name: (ABSENT if value is None else f"{value:,.0f}", value) for name, value in whole.items()}
        return {**shown, "rate": (ABSENT if self.rate is None else f"{self.rate:g}", self.rate)}


def budget_of(runs: list[Run]) -> Budget:
    """The budget of the seeds of one row."""
    first = runs[0]
    steps, batch = first.value("optim.max_steps"), first.value("batch.samples")
    samples = first.samples_seen
    if samples is None and steps is not None and batch is not None:
        samples = steps * batch
    tokens = [run.tokens_seen for run in runs]
    known = [value for value in tokens if value is not None]
    mean = sum(known) / len(known) if known and len(known) == len(tokens) else None
    return Budget(steps, samples, mean, batch, first.value("optim.lr"))


# -----------------------------------------------------------------------------
# What must be equal for two rows to compare. Batch and rate are each model's own choice: they are shown, no more.


def conditions(runs: list[Run]) -> dict[str, str]:
    """What must be equal -> its value for a row, as a text to be compared."""
    run = runs[0]
    budget = budget_of(runs)
    return {
        "samples": _text(budget.samples),
        # A data set's fingerprint is of its tokens, and so of the tokenizer, too.
        "training data and tokenizer": _data(run, "data.train"),
        _SHARES: _text(_shares([source.get("weight", 1.0) for source in _sources(run, "data.train")])),
        "objective": _text(run.value("objective")),
        "selection": _text([run.value("checkpoint.best"), _data(run, "data.eval")]),
        "model.from": _text(run.value("model.from")),
        "evaluated samples": _text(run.value("eval.samples") if run.split == VALIDATION else None),
    }


def _data(run: Run, key: str) -> str:
    """What a data set is: the fingerprint of each source, else its folder."""
    noted = run.fingerprints.get(key) if isinstance(run.fingerprints, dict) else None
    sources = _sources(run, key)
    if not isinstance(noted, list) or len(noted) != len(sources):
        noted = [source["path"] for source in sources] if noted is None else [noted]
    return _text(noted)


def _sources(run: Run, key: str) -> list[dict[str, Any]]:
    named = run.value(key)
    return named if isinstance(named, list) else [{"path": named}]


def mixture(run: Run) -> str:
    """The data sets that a run was trained on, each with its share, as plain text; "" if it is one."""
    sources = _sources(run, "data.train")
    if len(sources) < 2:
        return ""
    names = shortest([without_split(Path(str(source["path"]))) for source in sources])
    shares = _shares([source.get("weight", 1.0) for source in sources])
    shown = (f"{share:.4g}" if isinstance(share, float) else str(share) for share in shares)
    return ", ".join(f"{name} {share}" for name, share in zip(names, shown, strict=True))


def _shares(weights: list[Any]) -> list[Any]:
    """The share of each source of a mixture, of which the fingerprints know nothing; weights that no run has as they
    are.
    """
    if not all(type(weight) in (int, float) and 0 < weight < 1e300 for weight in weights):
        return weights
    total = sum(weights)
    return [round(weight / total, _DIGITS_OF_SHARES) for weight in weights]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def letters(rows: list[dict[str, str]]) -> list[str]:
    """A letter for the conditions of each row of a table, equal for equal ones; none ("") where all are equal."""
    different = list(dict.fromkeys(map(_text, rows)))
    if len(different) == 1:
        return [""] * len(rows)
    return [_letter(different.index(_text(row))) for row in rows]


def _letter(number: int) -> str:
    """A ... Z, AA, AB ..."""
    before, last = divmod(number, len(string.ascii_uppercase))
    return (_letter(before - 1) if before else "") + string.ascii_uppercase[last]


def caption(budgets: list[Budget], held: list[dict[str, str]], mixtures: list[str]) -> str:
    """What is held equal in a table, and what is not, with what follows from it; plain text.

    `mixtures`: the data sets of each row as `mixture` has them, which are told.
    """
    shared = [f"{name} {budgets[0].cells[name][0]}" for name in COLUMNS if name in equal_columns(budgets)]
    unequal = [name for name in held[0] if len({row[name] for row in held}) > 1]
    shared += [name for name in held[0] if name not in (*unequal, "samples") and (name != _SHARES or any(mixtures))]
    told = {_SHARES: _told(mixtures, letters(held))}
    said = f"Held equal: {', '.join(told.get(name, name) for name in shared)}."
    if unequal:
        said += (
            f" Not held equal: {', '.join(told.get(name, name) for name in unequal)}. Only rows of one letter compare: "
            "between others the difference may be theirs and not the model's."
        )
    return said


def _told(mixtures: list[str], rows: list[str]) -> str:
    """The shares of the rows' data sets, with the letters of the rows that have them where these differ."""
    of: dict[str, list[str]] = defaultdict(list)
    for mixed, letter in zip(mixtures, rows, strict=True):
        if letter not in of[mixed]:
            of[mixed].append(letter)
    if len(of) == 1:
        return f"{_SHARES} ({mixtures[0]})"
    each = (f"{', '.join(found)}: {mixed or 'one alone'}" for mixed, found in of.items())
    return f"{_SHARES} ({'; '.join(each)})"


def equal_columns(budgets: list[Budget]) -> set[str]:
    """The columns that all rows have in common, and that all know."""
    if len(budgets) < 2:
        return set()
    found = {name: {budget.cells[name][0] for budget in budgets} for name in COLUMNS}
    return {name for name, values in found.items() if len(values) == 1 and values != {ABSENT}}
