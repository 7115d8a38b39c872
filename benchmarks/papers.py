"""The papers' experiments at a size for two CPU cores; docs/results/README.md has the results and how they were made.

    python benchmarks/papers.py synthetic|long-range|forecasting|language --work FOLDER [--jobs 2] [--minutes 1.5]

Makes the data that can be made, writes a run file for each task and mixer into FOLDER/files, runs them with `longmix
sweep` and tabulates them with `longmix report`. What has finished is not run again, so the same command goes on after
an interruption. Data that cannot be made are named with the command that prepares them.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import commands
import yaml
from learned.papers_cases import EXPERIMENTS, Case

from longmix.data_prep.files import write_json

# Of a run that measures the speed: the first steps, which start everything, do not count.
SPEED_STEPS, SPEED_SKIPPED = 40, 10


def main() -> int:
    arguments = _parse()
    work = arguments.work.resolve()
    experiment = EXPERIMENTS[arguments.experiment]
    for folder in (work / "data", work / "files", work / "runs"):
        folder.mkdir(parents=True, exist_ok=True)
    _prepare(experiment.data, work)
    cases = experiment.cases(work)
    if experiment.is_timed:
        cases = _with_equal_time(cases, work, arguments)
    output = (arguments.output or work / "results" / arguments.experiment).resolve()
    runs = work / "runs" / arguments.experiment
    code = _sweep(cases, work / "files" / arguments.experiment, runs, experiment.seeds, arguments.jobs)
    if code != 0:
        return code
    # From there, since the tables name the folders as they are given.
    return _longmix("report", str(runs.relative_to(work)), "--output", str(output), folder=work)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs; outside the repository")
    parser.add_argument("--output", type=Path, help="folder of the tables and plots (default: in --work)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, which share the processors (default: 2)")
    parser.add_argument(
        "--minutes", type=float, default=1.5, help="of training, for each run of long-range (default: 1.5)"
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


def _with_equal_time(cases: list[Case], work: Path, arguments: argparse.Namespace) -> list[Case]:
    """The cases with as many steps as each makes in `--minutes`.

    The speed is measured once, by short runs, as many at a time as the runs themselves. The steps stay in a file, so
    that a run is what it was when the command goes on.
    """
    place = work / "files" / f"{arguments.experiment}-steps.json"
    asked = {"minutes": arguments.minutes, "jobs": arguments.jobs}
    found = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {**asked, "steps": {}}
    if {name: found[name] for name in asked} != asked:
        raise SystemExit(
            f"the runs in {work} were begun with --minutes {found['minutes']} --jobs {found['jobs']}: "
            "give these again, or another --work"
        )
    if unknown := [case for case in cases if case.name not in found["steps"]]:
        found["steps"] |= _measured_steps(unknown, work, arguments)
        write_json(place, found)
    return [case.with_steps(found["steps"][case.name]) for case in cases]


def _measured_steps(cases: list[Case], work: Path, arguments: argparse.Namespace) -> dict[str, int]:
    short = [
        case.changed(
            optim={"max_steps": SPEED_STEPS, "warmup_steps": 1},
            eval={"every_steps": SPEED_STEPS, "samples": 8},
            checkpoint={"every_steps": SPEED_STEPS},
            log={"every_steps": SPEED_SKIPPED},
            data={"test": None},
        )
        for case in cases
    ]
    speeds = work / "speed" / arguments.experiment
    code = _sweep(short, work / "files" / f"{arguments.experiment}-speed", speeds, 1, arguments.jobs)
    if code != 0:
        raise SystemExit(code)
    steps = {case.name: 60 * arguments.minutes / _seconds_per_step(speeds / case.name / "seed-0") for case in cases}
    # Two digits: the speed is not known better.
    return {name: max(10, int(float(f"{number:.1e}"))) for name, number in steps.items()}


def _seconds_per_step(run: Path) -> float:
    """The median over the records after the first; a record's seconds are its tokens by its speed."""
    records = commands.records(run, "train")
    return statistics.median(
        (after["tokens_seen"] - before["tokens_seen"]) / after["tokens_per_second"] / (after["step"] - before["step"])
        for before, after in itertools.pairwise(records)
    )


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
