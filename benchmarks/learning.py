"""The tasks that each mixer learns: probes of copying and look-up at a distance, and masked language modelling.

    python benchmarks/learning.py --work FOLDER [--jobs 2]
    python benchmarks/learning.py --part recipes --work FOLDER --corpus FILE [--trial grid] [--plan]

Trains every model type, a control and the transformer by `longmix train`, `--jobs` runs at a time with one thread each;
what has finished in FOLDER is not run again, so the same command goes on after an interruption. Appends the figures to
benchmarks/results.csv and redraws the tables of docs/learning.md. FILE is UTF-8 text; only its beginning is read.
`--part recipes` makes the trials of configs/recipes/small_budget.yaml, and takes hours: `--plan` says how many.
"""

import argparse
import datetime
import itertools
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import begun
import commands
import record
import torch
import transformers
from learned import influence, recipe_baselines, recipe_cases, recipe_tables
from learned import tables as learning_tables
from learned.cases import (
    CONTROL,
    DISTANCES,
    RECIPES,
    ROOT,
    TASKS,
    Case,
    probe_cases,
    probe_commands,
    probe_files,
    text_command,
    write_control,
)

from longmix.modeling import MODEL_TYPES  # registers them, too
from longmix.trainer.processes.ending import exit_code

PROBES, RECIPE = PARTS = ("probes", "recipes")


def main() -> int:
    arguments = _parse()
    if arguments.plan:
        return plan(arguments.models, arguments.trial)
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    failed = []
    inputs = made_from(arguments)
    begun.refuse_others(work, inputs)
    begun.note(work, inputs)
    if PROBES in arguments.part:
        for words in probe_commands(work):
            commands.longmix(words, work / "prepare.log")
        for task, distance in RECIPES:
            write_control(work, task, distance)
        failed += run_all(probe_cases(work), arguments.jobs, probe_figures, arguments.models)
    if RECIPE in arguments.part:
        for command in (text_command, recipe_cases.recipe_command):
            commands.longmix(command(work, arguments.corpus), work / "prepare.log")
        for words in recipe_cases.rows_commands(work):
            commands.longmix(words, work / "prepare.log")
        count_baselines(work)
        for trial in arguments.trial:
            failed += run_trial(work, trial, arguments.jobs, arguments.models)
    learning_tables.redraw(ROOT / "docs" / "learning.md", work)
    for case, log in failed:
        print(f"failed: {case.name}; see {log}", file=sys.stderr)
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs; outside the repository")
    parser.add_argument("--corpus", type=Path, help="text file to learn from, of which the beginning is taken")
    parser.add_argument("--part", action="append", choices=PARTS, help="(default: probes)")
    parser.add_argument(
        "--trial", action="append", choices=recipe_cases.TRIALS, help="of --part recipes, one only (default: all)"
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODEL_TYPES, metavar="NAME", help="these rows only (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each (default: 2)")
    parser.add_argument(
        "--plan", action="store_true", help="print the runs of --part recipes and their hours; run none"
    )
    arguments = parser.parse_args()
    arguments.part = arguments.part or [PROBES]
    if (arguments.trial or arguments.plan) and arguments.part != [RECIPE]:
        parser.error("--trial and --plan are for --part recipes")
    arguments.trial = arguments.trial or list(recipe_cases.TRIALS)
    if arguments.plan or arguments.part == [PROBES]:
        return arguments
    if arguments.corpus is None or not arguments.corpus.is_file():
        parser.error("--corpus names the text file to learn from")
    least = recipe_cases.CORPUS_BYTES
    if arguments.corpus.stat().st_size < least:
        parser.error(f"--corpus {arguments.corpus} is too short for --part recipes, which takes {least:,} bytes of it")
    return arguments


def made_from(arguments: argparse.Namespace) -> begun.Inputs:
    """For `begun.refuse_others`. The trials of the recipe name their models in their folders."""
    found = {}
    if PROBES in arguments.part:
        rows = [row for row in MODEL_TYPES if arguments.models is None or row in arguments.models]
        found |= {f"model of {row} for the probes": begun.digest(*probe_files(row)) for row in rows}
    if RECIPE in arguments.part:
        found["corpus"] = begun.content(arguments.corpus)
    return found


def count_baselines(work: Path) -> None:
    """Count what models must pass, and append it where that is new."""
    is_new = not (work / recipe_baselines.FILE).is_file()
    counted = recipe_baselines.count(work)
    for name, figure, value in recipe_baselines.figures(counted) if is_new else ():
        record.append("learning", name, figure, [value], learning_tables.UNITS[figure], recipe_tables.COMMAND)


def plan(rows: list[str] | None, trials: list[str]) -> int:
    """Print the runs of the trials, and the core-hours that they take at the speed of those that were recorded."""
    small, larger = (_speeds(trial) for trial in (recipe_cases.SEEDS, recipe_cases.LARGER))
    total = 0.0
    for trial, row, runs, tokens in recipe_cases.planned(rows, trials):
        speed = (larger if trial == recipe_cases.LARGER else small)[row]
        hours = tokens / speed / 3600
        total += hours
        print(f"{trial:7} {row:12} {runs:3} runs  {hours:6.2f} core-hours at {speed:,.0f} tokens/s")
    print(f"{total:.1f} core-hours in all; runs that have finished in --work are not repeated")
    return 0


def _speeds(trial: str) -> dict[str, float]:
    """Row -> tokens per second: the median over the runs of a trial."""
    found: dict[str, list[float]] = {}
    for row in record.rows("learning"):
        table, _, rest = row["case"].partition(", ")
        if row["figure"] == "tokens_per_second" and table == recipe_cases.table_of(trial):
            found.setdefault(rest.partition(",")[0], []).append(float(row["value"]))
    return {row: statistics.median(speeds) for row, speeds in found.items()}


# Of a trial with changes: row, or length -> words -> seeds.
_SEVERAL = {
    recipe_cases.CHANGES: recipe_cases.change_cases,
    recipe_cases.CONFIRM: recipe_cases.confirm_cases,
    recipe_cases.LONGER: recipe_cases.longer_cases,
    recipe_cases.LARGER: recipe_cases.larger_cases,
    recipe_cases.BATCHES: recipe_cases.batch_cases,
    recipe_cases.FACTORS: recipe_cases.factor_cases,
}


def run_trial(work: Path, trial: str, jobs: int, rows: list[str] | None) -> list[tuple[Case, Path]]:
    """The runs of one trial of the recipe."""
    if trial == recipe_cases.GRID:
        return run_grid(work, jobs, rows)
    if trial == recipe_cases.CURVE:
        return run_lengths(work, jobs, rows)
    if trial == recipe_cases.SEEDS:
        cases = list(itertools.chain(*recipe_cases.seed_cases(work).values()))
    else:
        of_seeds = [seeds for changed in _SEVERAL[trial](work).values() for seeds in changed.values()]
        # The first seed of everything, then the second.
        cases = list(itertools.chain(*zip(*of_seeds, strict=True)))
    return run_all(cases, jobs, trial_figures, rows)


def run_grid(work: Path, jobs: int, rows: list[str] | None) -> list[tuple[Case, Path]]:
    """Rates until the best one lies between others, then further seeds of it; a failed run ends the search."""
    known, failed = -1, []
    while not failed and known < len(cases := recipe_cases.grid_cases(work)):
        known = len(cases)
        failed = run_all(list(cases.values()), jobs, trial_figures, rows)
    further = list(itertools.chain(*recipe_cases.chosen_cases(work).values()))
    return failed + run_all(further, jobs, trial_figures, rows)


def run_lengths(work: Path, jobs: int, rows: list[str] | None) -> list[tuple[Case, Path]]:
    """Ever longer runs of each row until their mean passes the bigram; a row of which one fails goes no further."""
    bar = recipe_baselines.count(work)["curve"]
    going, failed = recipe_cases.curve_cases(work), []
    for length in recipe_cases.LENGTHS:
        seeds = {row: lengths[length] for row, lengths in going.items() if length in lengths}
        failed += run_all(list(itertools.chain(*seeds.values())), jobs, trial_figures, rows)
        found = {row: [case.record() for case in cases] for row, cases in seeds.items()}
        behind = [
            row
            for row, records in found.items()
            if None not in records and not recipe_baselines.passes(records, bar, length)
        ]
        going = {row: lengths for row, lengths in going.items() if row in behind}
    return failed


def run_all(
    cases: list[Case], jobs: int, figures: Callable[[Case], dict], rows: list[str] | None
) -> list[tuple[Case, Path]]:
    """Train what has not finished, note and append its figures as it ends; returns what failed, with its log."""
    waiting = [case for case in cases if case.record() is None and (rows is None or case.row in rows)]
    # The longest of a seed first, so that none is left over at the end.
    waiting.sort(key=lambda case: (case.variant if case.distance else "", -case.distance))
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_train, case): case for case in waiting}
        try:
            for future in as_completed(running):
                case = running[future]
                if future.result() == 0:
                    _note(case, figures(case))
                else:
                    failed.append((case, _log(case)))
        except KeyboardInterrupt:
            # The runs have had the signal too, and save themselves; no other one begins.
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _note(case: Case, values: dict) -> None:
    case.finish({**values, "made": made()})
    command = learning_tables.COMMAND if case.table in TASKS else recipe_tables.COMMAND
    for figure, value, unit in learning_tables.recorded(values):
        record.append("learning", case.name, figure, [value], unit, command)


def _train(case: Case) -> int:
    return commands.longmix(["train", *case.arguments], _log(case), check=False)


def _log(case: Case) -> Path:
    case.folder.parent.mkdir(parents=True, exist_ok=True)
    return case.folder.with_name(f"{case.folder.name}.log")


def _metrics(case: Case) -> tuple[dict, dict]:
    """(the last evaluation, {"tokens_per_second": the median over the run})."""
    speeds = [entry["tokens_per_second"] for entry in commands.records(case.folder, "train")]
    return commands.records(case.folder, "eval")[-1], {"tokens_per_second": statistics.median(speeds)}


def probe_figures(case: Case) -> dict:
    """Accuracy, and for the copying mixers how far they mix: before training, and after."""
    evaluation, _ = _metrics(case)
    figures = {name: evaluation[name] for name in ("accuracy", "loss")}
    if case.table == "copy" and case.row != CONTROL:
        distances = [distance for distance in (1, *DISTANCES) if distance <= case.distance]
        length = RECIPES[case.table, case.distance].length
        model = transformers.AutoModelForTokenClassification.from_pretrained(case.folder / "model")
        torch.manual_seed(0)
        fresh = transformers.AutoModelForTokenClassification.from_config(model.config)
        figures["influence"] = influence.by_distance(model, distances, length)
        figures["influence_before"] = influence.by_distance(fresh, distances, length)
    return figures


def trial_figures(case: Case) -> dict:
    """Masked accuracy and loss on the rows that are reported, and on those by which a rate is chosen."""
    evaluation, speed = _metrics(case)
    reported = commands.records(case.folder, "test")[-1]
    names = ("masked_accuracy", "loss")
    chosen_by = {f"validation_{name}": evaluation[name] for name in names}
    return {**{name: reported[name] for name in names}, **chosen_by, **speed}


def made() -> dict[str, str]:
    """The command, commit and machine of a figure."""
    return {"date": datetime.date.today().isoformat(), "commit": record.commit(), "machine": record.machine()}


if __name__ == "__main__":
    sys.exit(exit_code(main, "learning"))
