"""The papers' experiments at a size for two CPU cores; docs/results/README.md has the results and how they were made.

    python benchmarks/papers.py synthetic|long-range|forecasting|language --work FOLDER [--jobs 2] [--plan]

Makes the data that can be made, writes a run file for each task and mixer into FOLDER/files, runs them with `longmix
sweep` and tabulates them with `longmix report`; where an experiment searches, each row's rate and initial weights are
first chosen on the validation split. What has finished is not run again, so the same command goes on after an
interruption. Data that cannot be made are named with the command that prepares them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import commands
import yaml
from learned import linear_baseline, papers_tables
from learned.papers_cases import EXPERIMENTS, Case, Experiment, Trial

from longmix.data_prep.made_files import write_files
from longmix.data_prep.manifest import Manifest
from longmix.trainer.many_runs.read import FAILURE
from longmix.trainer.objectives import causal_bigram
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.exit_codes import INTERRUPTED
from longmix.trainer.settings.run_file import read_settings
from longmix.trainer.settings.sections import BatchSection, DataSection
from longmix.trainer.settings.shuffling import settled

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def main() -> int:
    arguments = _parse()
    work = arguments.work.resolve()
    experiment = EXPERIMENTS[arguments.experiment]
    for folder in (work / "data", work / "files", work / "runs"):
        folder.mkdir(parents=True, exist_ok=True)
    _prepare(experiment.data, work)
    cases = experiment.cases(work)
    if arguments.plan:
        return plan(arguments.experiment, experiment, cases)
    output = (arguments.output or work / "results" / arguments.experiment).resolve()
    runs = work / "runs" / arguments.experiment
    found: dict[str, dict[Trial, float | None]] = {}
    if experiment.trials:
        found, code = search(experiment, cases, work, arguments)
        if code != 0:
            return code
        cases = [papers_tables.best(found[case.name]).of(case) for case in cases]
    code = _sweep(cases, work / "files" / arguments.experiment, runs, experiment.seeds, arguments.jobs)
    if code != 0:
        return code
    # From there, since the tables name the folders as they are given.
    code = _longmix("report", str(runs.relative_to(work)), "--output", str(output), folder=work)
    if code == 0:
        added = papers_tables.search_section(found, runs) if found else ""
        added += papers_tables.bigram_section(counted(cases[0])) if experiment.has_bigram else ""
        if experiment.has_linear:
            data = {case.name.split("/")[0]: case.values["data"] for case in cases}
            added += papers_tables.linear_section({name: linear_baseline.score(them) for name, them in data.items()})
        append(output / "report.md", added)
    return code


def append(page: Path, added: str) -> None:
    """Sections at the end of a page of `longmix report`, which still knows it as its own then."""
    text = page.read_text(encoding="utf-8") + added
    write_files(page.parent, {page.name: text}, earlier=lambda path: False)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs; outside the repository")
    parser.add_argument("--output", type=Path, help="folder of the tables and plots (default: in --work)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, which share the processors (default: 2)")
    parser.add_argument(
        "--plan", action="store_true", help="prepare the data, print the runs and their hours; run none"
    )
    return parser.parse_args()


def _prepare(data: dict[str, tuple[str, bool]], work: Path) -> None:
    missing = []
    for name, (words, is_made_here) in data.items():
        if is_made_here:
            # A finished folder is left as it is.
            commands.longmix(["prepare", *words.split(), "--output", str(work / "data" / name)], work / "prepare.log")
        elif not (work / "data" / name / "train" / "manifest.json").is_file():
            missing.append(f"longmix prepare {words} --output {work / 'data' / name}")
    if missing:
        raise SystemExit("missing data; prepare them first:\n" + "\n".join(missing))


def plan(name: str, experiment: Experiment, cases: list[Case]) -> int:
    """Print the runs and the hours of training that they take at the speed of the tables in docs/results."""
    known = json.loads((RESULTS / name / "report.json").read_text(encoding="utf-8"))["rows"]
    total, runs = 0.0, experiment.seeds + len(experiment.trials)
    for case in cases:
        model_type = read_settings(case.values["extends"], []).values["model"]["model_type"]
        data = case.name.split("/")[0]
        speeds = [row["tokens_per_second"] for row in known if (row["data"], row["model_type"]) == (data, model_type)]
        if not speeds:
            print(f"{case.name:40} {runs:3} runs, of a speed that no table has")
            continue
        hours = runs * _tokens(case) / statistics.median(speeds) / 3600
        total += hours
        print(f"{case.name:40} {runs:3} runs  {hours:6.2f} core-hours")
    print(f"{total:.1f} core-hours of training in all; runs that have finished in --work are not repeated")
    return 0


def _tokens(case: Case) -> float:
    """Tokens that a run trains on."""
    manifest = Manifest.load(Path(case.values["data"]["train"]))
    per_sample = manifest.sequence_length if manifest.tokens is None else manifest.tokens / manifest.samples
    return case.values["optim"]["max_steps"] * case.values["batch"]["samples"] * per_sample


def search(
    experiment: Experiment, cases: list[Case], work: Path, arguments: argparse.Namespace
) -> tuple[dict[str, dict[Trial, float | None]], int]:
    """Run every trial of every case, with as many steps as the case and without the test split.

    Returns:
        (name of the case -> trial -> the best accuracy on validation, None where training has failed; exit code)
    """
    runs = work / "runs" / f"{arguments.experiment}-search"
    tried = {
        (case.name, trial): trial.of(case).renamed(f"{case.name}/{trial.name}").changed(data={"test": None})
        for case in cases
        for trial in experiment.trials
    }
    files = work / "files" / f"{arguments.experiment}-search"
    code = _sweep(list(tried.values()), files, runs, 1, arguments.jobs)
    found: dict[str, dict[Trial, float | None]] = {case.name: {} for case in cases}
    if code == INTERRUPTED:
        return found, code
    for (name, trial), case in tried.items():
        run = runs / case.name / "seed-0"
        has_failed = (run / FAILURE).is_file()
        if code != 0 and not has_failed and not (run / "model").is_dir():
            return found, code
        found[name][trial] = None if has_failed else _best_accuracy(run)
    # A rate at which training fails is a finding; a row of which every trial fails is none.
    return found, code if any(set(trials.values()) == {None} for trials in found.values()) else 0


def _best_accuracy(run: Path) -> float:
    return max(record["accuracy"] for record in commands.records(run, "eval"))


def counted(case: Case) -> dict[str, dict[str, float]]:
    """Unigram and bigram of the rows that the first seed of a run reads, on its test split."""
    train, test = (ShardedDataset(Path(case.values["data"][split])) for split in ("train", "test"))
    batch = case.values["batch"]["samples"]
    ranges = settled(DataSection(train=""), BatchSection(batch))
    order = RunOrder([len(train)], [1.0], ranges.partitions, ranges.window, 0, ranges.order)
    read = order.draw(0, batch * case.values["optim"]["max_steps"]).sample
    return causal_bigram.baselines(train, read[: len(train)], test)


def _sweep(cases: list[Case], files: Path, runs: Path, seeds: int, jobs: int) -> int:
    paths = []
    for case in cases:
        path = files / f"{case.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            yaml.safe_dump({**case.values, "run": {"dir": str(runs / case.name)}}, sort_keys=False), encoding="utf-8"
        )
        paths.append(str(path))
    return _longmix("sweep", *paths, "--seeds", str(seeds), "--parallel", str(jobs))


def _longmix(*words: str, folder: Path | None = None) -> int:
    return subprocess.run([sys.executable, "-m", "longmix.trainer", *words], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
