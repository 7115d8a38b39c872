"""Core-hours of the table before it is made: from a few steps of every row, and from what has run already."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import torch
from glue_table.budget import BATCH
from glue_table.cases import SPEED_STEPS, Case, Table
from glue_table.data import TASKS, validation_tokens
from glue_table.stages import Part

from longmix.data_prep.errors import UserError

STAGES = ("speed", "search", "pretraining", "tuning search", "tuning")
# Seconds of a command before it computes, and of each run of fine-tuning beside computing: evaluations, saving.
STARTING, SAVING = 8.0, 2.0
# Seconds of a step of fine-tuning, however small: a GPU waits for the launches of its kernels.
SHORTEST_STEP = 0.03
# What a position costs that is only predicted, against one that is trained on.
PREDICTED = 1 / 3
# Of the training data of fine-tuning, what the rates are chosen on.
SELECTION = 0.1


@dataclass(frozen=True)
class Estimate:
    """Of a stage: runs and hours, of which `done` have finished."""

    stage: str
    runs: int
    hours: float
    done: int
    hours_done: float


def plan(table: Table, part: Part) -> list[Estimate]:
    """An estimate of each stage; call it once the speeds have been measured. Hours are of one core, or of the GPU.

    What a formula says of a stage (and task) is scaled by what its finished runs took.
    """
    runs = [(stage, row, about) for stage, row, about in _runs(table, part)]
    finished = {(*one[:2], _key(one[2])): record for one in runs if (record := _record(table, *one)) is not None}
    ratios = _ratios(table, finished, runs)
    sums = {stage: [0, 0.0, 0, 0.0] for stage in STAGES}
    for stage, row, about in runs:
        record = finished.get((stage, row, _key(about)))
        seconds = took(record) if record else formula(table, stage, row, about) * _ratio(ratios, stage, about)
        entry = sums[stage]
        entry[0], entry[1] = entry[0] + 1, entry[1] + seconds / 3600
        if record:
            entry[2], entry[3] = entry[2] + 1, entry[3] + seconds / 3600
        if stage == "tuning":
            replaced = _replaced(table, row, about) / 3600
            entry[1], entry[3] = entry[1] + replaced, entry[3] + replaced
    return [Estimate(stage, *entry) for stage, entry in sums.items()]


def tokens_for(table: Table, part: Part, hours: float) -> int:
    """Tokens of a pre-training run with which the whole part takes so many hours.

    Raises:
        UserError: the rest alone takes longer.
    """

    def total(tokens: int) -> float:
        return sum(estimate.hours for estimate in plan(_with_tokens(table, tokens), part))

    unit = 10_000_000
    none, one = total(0), total(unit)
    if none >= hours:
        raise UserError(
            f"--hours {hours:g}: all but pre-training takes {none:.1f} hours already; give more, or fewer --rows"
        )
    return int(float(f"{unit * (hours - none) / (one - none):.2g}"))


def took(record: dict) -> float:
    """Seconds of a core; of a GPU, by the clock."""
    return record["seconds"] if torch.cuda.is_available() else record["cpu_seconds"]


def formula(table: Table, stage: str, row: str, about: dict) -> float:
    """Seconds of a run by the row's speed in a few steps of pre-training."""
    speed = table.measured(row)["tokens_per_second"]
    budget = table.budget
    if stage == "speed":
        return STARTING
    if stage in ("search", "pretraining"):
        share, evaluations = (budget.search_share, 1) if stage == "search" else (1.0, budget.evaluations)
        positions = share * budget.tokens + PREDICTED * (evaluations + 1) * validation_tokens(table.corpus)
        return STARTING + positions / speed
    sizes, task = table.tasks[about["task"]], TASKS[about["task"]]
    selected = PREDICTED * SELECTION * task.epochs + (1 - SELECTION) * task.epochs
    positions = selected * sizes["train_tokens"] + PREDICTED * sizes["reported_tokens"]
    runs = len(budget.tuning_rates) if stage == "tuning search" else table.seeds_of(about["start"])
    steps = task.epochs * math.ceil((1 - SELECTION) * sizes["examples"] / BATCH)
    return STARTING + runs * (SAVING + max(positions / speed, steps * SHORTEST_STEP))


# -----------------------------------------------------------------------------
# Runs by what they are, known before the rates that their words depend on.


def _runs(table: Table, part: Part) -> list[tuple[str, str, dict]]:
    made = []
    for row in part.rows:
        if table.measured(row) is None:
            continue  # nobody knows its speed; a row whose first runs fail goes no further
        made += [("speed", row, {"steps": steps}) for steps in SPEED_STEPS]
        made += [("search", row, case.about) for case in table.search(row)]
        made += [("pretraining", row, {"seed": seed}) for seed in part.seeds]
        for task in part.tasks:
            for start in part.starts:
                made += [("tuning search", row, case.about) for case in table.tuning_search(row, start, task)]
                made += [("tuning", row, {"start": start, "task": task, "seed": seed}) for seed in part.seeds]
    return made


def _case(table: Table, stage: str, row: str, about: dict) -> Case | None:
    if stage in ("speed", "search"):
        return next(case for case in getattr(table, stage)(row) if case.about == about)
    if stage == "pretraining":
        return table.pretraining(row, about["seed"])
    if stage == "tuning search":
        return table.tuning_search(row, about["start"], about["task"])[0]
    return table.tuning(row, about["start"], about["task"], about["seed"])


def _record(table: Table, stage: str, row: str, about: dict) -> dict | None:
    case = _case(table, stage, row, about)
    return None if case is None else case.record()


def _replaced(table: Table, row: str, about: dict) -> float:
    """Seconds of runs of fine-tuning in whose place another one is."""
    which = (row, about["start"], about["task"], about["seed"])
    stands = table.tuning(*which)
    records = [case.record() for case in table.tried(*which) if case != stands]
    return sum(took(record) for record in records if record is not None)


def _key(about: dict) -> tuple:
    return tuple(about.items())


def _ratios(table: Table, finished: dict[tuple, dict], runs: list[tuple]) -> dict[tuple, float]:
    """(stage, task or None) -> seconds taken over seconds by the formula."""
    taken, said = defaultdict(float), defaultdict(float)
    for stage, row, about in runs:
        record = finished.get((stage, row, _key(about)))
        if record is not None:
            for key in ((stage, about.get("task")), (stage, None)):
                taken[key] += took(record)
                said[key] += formula(table, stage, row, about)
    return {key: taken[key] / said[key] for key in taken}


def _ratio(ratios: dict[tuple, float], stage: str, about: dict) -> float:
    return ratios.get((stage, about.get("task")), ratios.get((stage, None), 1.0))


def _with_tokens(table: Table, tokens: int) -> Table:
    return replace(table, budget=replace(table.budget, tokens=tokens))
