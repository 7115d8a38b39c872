"""Every mixer pre-trained on the same tokens and fine-tuned on the same tasks, beside controls without learning.

    python benchmarks/glue.py --work FOLDER --corpus FILE [FILE ...] --glue FOLDER --imdb FOLDER [--plan] [--gate]

Searches the rate of pre-training of every row at a share of the budget, pre-trains two seeds, searches the rate of
fine-tuning of every row, task and start, and fine-tunes five seeds of each. First the pilot row (paramixer) shows on
IMDb that pre-training is worth something; where it does not, the others run only with --past-gate. What has finished in
FOLDER is not run again, so the same command goes on after an interruption. The page, results.json and results.csv go to
FOLDER/results, with --record to docs/results/glue too, beside the rows of the same table that stand there.

--corpus: UTF-8 text, .jsonl, or .tsv with a column `text`; of every file the beginning is read. --glue: GLUE's folder
(SST-2 and CoLA are taken). --imdb: a folder with train.tsv and test.tsv, columns `label` (0, 1) and `text`. A task that
is not given has no column.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import begun
import commands
import transformers
from glue_table import data, inputs, page
from glue_table.budget import PILOT, PILOT_TASK, RECIPE, ROOT, SIZES, Budget
from glue_table.cases import Table
from glue_table.plan import plan, tokens_for
from glue_table.results import collect, gate, joined, tuned
from glue_table.rows import ROWS
from glue_table.stages import Part, Runner, cores

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_text
from longmix.trainer.processes.ending import exit_code
from longmix.trainer.tables.writing import aligned, as_csv, as_json

RECORDED = ROOT / "docs" / "results" / "glue"
TOKENS = 20_000_000
COMMAND = "python benchmarks/glue.py --work FOLDER --corpus FILE ... --glue FOLDER --imdb FOLDER"


def main() -> int:
    arguments = _parse()
    transformers.logging.disable_progress_bar()
    work = arguments.work.resolve()
    make_folder(work)
    # A GPU has one run at a time, a core too.
    jobs = arguments.jobs or (1 if arguments.size == "small" else 2)
    runner = Runner(jobs, max(1, cores() // jobs) if arguments.size != "tiny" else 1)
    table = _table(arguments, work, runner)
    if arguments.record:
        _refuse_another_record(table.budget)
    everything = Part(tuple(arguments.rows), tuple(range(table.budget.pretraining_seeds)), tuple(table.tasks))
    runner.measure(table, everything)
    if not arguments.plan:
        if _passes_gate(table, arguments, everything, runner) and not arguments.gate:
            runner.advance(table, everything)
        _write(table, everything, arguments, work)
    for case, log in runner.failed:
        print(f"failed: {case.name}: {commands.last_line(log)} (log: {log})", file=sys.stderr)
    lines = page.cost_lines([asdict(estimate) for estimate in plan(table, everything)])
    print("\n".join(aligned(page.COST_HEADER, lines, right=range(1, 5))))
    return 1 if runner.failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, help="folder for data and runs; outside the repository")
    add(
        "--corpus",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="text to pre-train on; or one prepared folder",
    )
    add("--glue", type=Path, metavar="FOLDER", help="GLUE's folder, with SST-2 and CoLA")
    add("--imdb", type=Path, metavar="FOLDER", help="folder of IMDb's train.tsv and test.tsv")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME", help=f"of {', '.join(ROWS)} (all)")
    add("--size", choices=SIZES, default="tiny", help="of the models: tiny for CPUs, small for a GPU (tiny)")
    add("--tokens", type=int, metavar="N", help=f"of a pre-training run ({TOKENS:,})")
    add("--hours", type=float, metavar="H", help="in place of --tokens: as many as make the table take so long")
    add("--recipe", type=Path, default=RECIPE, metavar="FILE", help=f"of pre-training ({RECIPE.relative_to(ROOT)})")
    add("--jobs", type=int, metavar="N", help="runs at a time (2; 1 for small)")
    add("--plan", action="store_true", help="measure the speeds, print runs and core-hours of each stage, and end")
    add("--gate", action="store_true", help="end after the gate")
    add("--past-gate", action="store_true", help="go on though the gate is not passed, or not measured")
    add("--record", action="store_true", help="add the rows to the page in docs/results/glue, too")
    arguments = parser.parse_args()
    if arguments.tokens is not None and arguments.hours is not None:
        parser.error("--tokens and --hours say the same: give one of them")
    for name in ("tokens", "hours", "jobs"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            parser.error(f"--{name} is {value:g}, but must be a number above 0")
    for path in [*arguments.corpus, arguments.recipe, *filter(None, (arguments.glue, arguments.imdb))]:
        if not path.exists():
            parser.error(f"{path} is not there")
    return arguments


def _table(arguments: argparse.Namespace, work: Path, runner: Runner) -> Table:
    """The table of these arguments; its data are made, and with --hours the speeds measured, first."""
    is_by_hours = arguments.hours is not None
    budget = Budget.of(arguments.size, arguments.tokens or TOKENS, arguments.hours, arguments.recipe.resolve())
    budget.refuse_another(work)
    sources = [path.resolve() for path in arguments.corpus]
    made_from = inputs.described(arguments.rows, arguments.size, sources, arguments.glue, arguments.imdb)
    begun.refuse_others(work, made_from)
    with begun.making(work, made_from, work / "data"):
        corpus = data.corpus(work, sources, None if is_by_hours else budget.tokens, cores())
        table = Table(work, budget, corpus, data.tasks(work, budget, arguments.glue, arguments.imdb))
    if not is_by_hours:
        return table
    part = Part(tuple(arguments.rows), tuple(range(budget.pretraining_seeds)), tuple(table.tasks))
    runner.measure(table, part)
    # Decided once: a run is what it was when the command goes on.
    tokens = data.kept(work / "tokens.json", lambda: tokens_for(table, part, arguments.hours))
    return replace(table, budget=replace(budget, tokens=tokens))


def _passes_gate(table: Table, arguments: argparse.Namespace, part: Part, runner: Runner) -> bool:
    """Run the pilot where it is among the rows, and say what came out; whether the others shall run."""
    if arguments.past_gate:
        return True
    if PILOT not in part.rows or PILOT_TASK not in part.tasks:
        print(f"the gate needs the row {PILOT} and --imdb: with --past-gate it goes on without")
        return False
    pilot = Part((PILOT,), (0,), (PILOT_TASK,))
    runner.advance(table, pilot)
    passed, told = gate(tuned(table, pilot, PILOT, PILOT_TASK, []))
    print(told)
    if not passed:
        print("the other rows run with --past-gate")
    return bool(passed)


def _write(table: Table, part: Part, arguments: argparse.Namespace, work: Path) -> None:
    """Write the page, and what it is made of."""
    names = [f"{path.resolve().parent.name}/{path.name}" for path in arguments.corpus]
    results = collect(table, part, data.count_baselines(table.corpus, work), names)
    _write_page(work / "results", results)
    if arguments.record:
        before = _recorded()
        _write_page(RECORDED, results if before is None else joined(results, before))


def _write_page(folder: Path, results: dict[str, Any]) -> None:
    make_folder(folder)
    write_text(folder / "report.md", page.render(results, COMMAND))
    write_text(folder / "results.json", as_json(results))
    write_text(folder / "results.csv", as_csv(page.CSV_COLUMNS, page.csv_records(results)))


def _recorded() -> dict[str, Any] | None:
    path = RECORDED / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _refuse_another_record(budget: Budget) -> None:
    """Before the first run.

    Raises:
        UserError: the table that is recorded was made with another budget.
    """
    before = _recorded()
    if before is not None and (told := budget.changes(before["budget"])):
        raise UserError(
            f"the recorded table has another budget ({told}): leave out --record, or begin a new one by removing "
            f"{RECORDED / 'results.json'}"
        )


if __name__ == "__main__":
    sys.exit(exit_code(main, "glue"))
