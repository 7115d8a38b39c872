"""The records of a table's runs, put together: what results.json holds, and the page is made of."""

import math
from dataclasses import asdict, replace
from typing import Any

import record
from glue_table import bag_of_words
from glue_table.budget import PILOT, PILOT_TASK
from glue_table.cases import STARTS, Table, decay_share
from glue_table.data import shown
from glue_table.plan import plan
from glue_table.rows import ROWS
from glue_table.spread import Difference, difference, score
from glue_table.stages import Part

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

CONTROLS = STARTS[1:]


def collect(table: Table, part: Part, counted: dict[str, dict[str, float]], names: list[str]) -> dict[str, Any]:
    """Everything that has finished.

    Args:
        counted: the figures of counting.
        names: of the corpus' files.
    """
    manifest, records = Manifest.load(table.corpus / "train"), []
    tasks = {
        name: {
            **table.tasks[name],
            "bag_of_words": bag_of_words.score(table.work, name, table.corpus / "tokenizer"),
            "rows": {row: tuned(table, part, row, name, records) for row in part.rows},
        }
        for name in part.tasks
    }
    rows = {row: _trained(table, part, row, records) for row in part.rows}
    for row in part.rows:
        searches = [
            case for start in part.starts for name in part.tasks for case in table.tuning_search(row, start, name)
        ]
        cases = [*table.speed(row), *table.search(row), *searches]
        records += [found for case in cases if (found := case.record()) is not None]
    made = {(one["commit"], one["machine"], one["threads"]) for one in (found["made"] for found in records)}
    return {
        "budget": table.budget.described(),
        "decay_share": decay_share(table.budget),
        "corpus": {"files": names, "tokens": manifest.tokens, "vocabulary": manifest.vocab_size},
        "shown": shown(table.corpus),
        "counted": counted,
        "rows": rows,
        "tasks": tasks,
        "stages": {
            row: [asdict(estimate) for estimate in plan(table, replace(part, rows=(row,)))] for row in part.rows
        },
        "made": [dict(zip(("commit", "machine", "threads"), one, strict=True)) for one in sorted(made)],
        "written_by": record.commit(),
    }


def _trained(table: Table, part: Part, row: str, records: list[dict]) -> dict[str, Any]:
    runs = []
    for seed in part.seeds:
        case = table.pretraining(row, seed)
        found = None if case is None else case.record()
        if found is not None:
            records.append(found)
            kept = ("precision", "masked_accuracy", "loss", "tokens", "curve")
            runs.append({"seed": seed, **{name: found[name] for name in kept}})
    searched = {f"{case.about['rate']:g}": (case.record() or {}).get("loss") for case in table.search(row)}
    return {
        "measured": table.measured(row),
        "rate": table.rate(row),
        "searched": searched,
        "runs": runs,
    }


def tuned(table: Table, part: Part, row: str, task: str, records: list[dict]) -> dict[str, Any]:
    """start -> the rate that was chosen, and of each seed of pre-training (or draw) that has finished its number, the
    rate that it has, and a list of scores."""
    made = {}
    for start in part.starts:
        cases = {seed: table.tuning(row, start, task, seed) for seed in part.seeds}
        of_seeds = {
            seed: one for seed, case in cases.items() if case is not None and (one := case.record()) is not None
        }
        found = list(of_seeds.values())
        if found:
            records += found
            scores = [one["scores"] for one in found]
            made[start] = {
                "rate": table.tuning_rate(row, start, task),
                "rates": [one["rate"] for one in found],
                "seeds": list(of_seeds),
                "scores": scores,
                "baseline": found[0]["baseline"],
            }
    return made


def joined(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The results `now` with the rows of `before` of which nothing has finished among them: a table may be made row by
    row, and by several machines.

    Raises:
        UserError: `before` is of another budget, other text or other tasks, with which nothing compares.
    """
    facts = [
        {
            **{name: results[name] for name in ("budget", "corpus", "counted")},
            "tasks": {name: {**task, "rows": None} for name, task in results["tasks"].items()},
        }
        for results in (now, before)
    ]
    other = [name for name in facts[0] if not _is_same(facts[0][name], facts[1][name])]
    if other:
        raise UserError(
            f"the recorded table has another {' and '.join(other)}: give the same --corpus, --glue, --imdb, --tokens "
            "and --recipe, or remove docs/results/glue/results.json to begin a new table"
        )

    begun = {row for row, found in now["rows"].items() if found["runs"]}
    begun |= {row for task in now["tasks"].values() for row, starts in task["rows"].items() if starts}

    def with_older(mine: dict[str, Any], older: dict[str, Any]) -> dict[str, Any]:
        kept = {row: found for row, found in mine.items() if row in begun or row not in older}
        return {row: {**older, **kept}[row] for row in ROWS if row in older or row in kept}

    made = [*now["made"], *(one for one in before["made"] if one not in now["made"])]
    return {
        **now,
        **{name: with_older(now[name], before[name]) for name in ("rows", "stages")},
        "tasks": {
            name: {**task, "rows": with_older(task["rows"], before["tasks"][name]["rows"])}
            for name, task in now["tasks"].items()
        },
        "made": sorted(made, key=lambda one: (one["commit"], one["machine"])),
    }


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, numbers up to the last digits in which machines differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def differences(starts: dict[str, Any]) -> dict[str, Difference]:
    """control -> how far pre-training lies above it, of one row and task; empty where something is missing."""
    if any(start not in starts for start in STARTS):
        return {}
    scores = {start: score(starts[start]["scores"]) for start in STARTS}
    return {control: difference(scores[STARTS[0]], scores[control]) for control in CONTROLS}


def is_above(starts: dict[str, Any]) -> bool | None:
    """Whether pre-training beats both controls by more than two standard errors; None: not known, for one seed of
    pre-training, or one draw, says nothing of how they differ."""
    found = differences(starts).values()
    if not found or any(len(one["scores"]) < 2 for one in starts.values()):
        return None
    return all(one.is_above for one in found)


def of_first_seed(starts: dict[str, Any]) -> dict[str, Any]:
    """The same without all but the first seed of pre-training, or draw of a control."""
    lists = ("rates", "seeds", "scores")
    return {start: {**found, **{name: found[name][:1] for name in lists}} for start, found in starts.items()}


def gate(starts: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether the pilot's pre-training is worth anything, and the sentence that says so: by one seed of it, before
    there are others."""
    apart = differences(starts).values()
    if not apart or any(one.error is None for one in apart):
        return None, f"The gate ({PILOT} on {PILOT_TASK}) has not been measured with several seeds."
    passed = all(one.is_above for one in apart)
    told = ", ".join(
        f"{100 * one.value:+.1f} points (standard error {100 * one.error:.1f}) against {control} weights"
        for control, one in differences(starts).items()
    )
    verdict = "passed" if passed else "not passed: pre-training does not beat both controls by two standard errors"
    seeds = " x ".join(map(str, score(starts[STARTS[0]]["scores"]).seeds))
    alone = "; how seeds of pre-training differ is not in it" if is_above(starts) is None else ""
    return passed, f"The gate ({PILOT} on {PILOT_TASK}, {seeds} seeds) is {verdict}: {told}{alone}."
