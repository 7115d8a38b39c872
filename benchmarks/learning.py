"""The tasks that each mixer learns: probes of copying and look-up at a distance, and masked language modelling of text.

    python benchmarks/learning.py --work FOLDER --corpus FILE [--part probes] [--part text] [--jobs 2]

Trains every model type, a control and the transformer by `longmix train`, `--jobs` runs at a time with one thread each;
what has finished in FOLDER is not run again, so the same command goes on after an interruption. Appends the figures to
benchmarks/results.csv and redraws the tables of docs/learning.md. FILE is UTF-8 text; only its beginning is read.
"""

import argparse
import contextlib
import datetime
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import commands
import influence
import numpy as np
import record
import torch
import transformers
from learned import tables as learning_tables
from learned.cases import (
    CONTROL,
    DISTANCES,
    RECIPES,
    ROOT,
    TEXT_BYTES,
    Case,
    probe_cases,
    probe_commands,
    text_cases,
    text_command,
    text_folder,
    write_control,
)
from neighbour_bigram import NeighbourBigram, most_frequent, positions

import longmix.modeling  # noqa: F401  registers the model types
from longmix.data_prep.files import write_json
from longmix.trainer.models.sizes import count_parameters
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.sections import ObjectiveSection

PARTS = ("probes", "text")


def main() -> int:
    arguments = _parse()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    failed = []
    if "probes" in arguments.part:
        for words in probe_commands(work):
            commands.longmix(words, work / "prepare.log")
        for task, distance in RECIPES:
            write_control(work, task, distance)
        failed += run_all(probe_cases(work), arguments.jobs, probe_figures, arguments.models)
    if "text" in arguments.part:
        commands.longmix(text_command(work, arguments.corpus), work / "prepare.log")
        cases = text_cases(work)
        count_baselines(work, arguments.corpus)
        failed += run_all(cases, arguments.jobs, text_figures, arguments.models)
    learning_tables.redraw(ROOT / "docs" / "learning.md", work)
    for case, log in failed:
        print(f"failed: {case.name}; see {log}", file=sys.stderr)
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for data and runs; outside the repository")
    parser.add_argument("--corpus", type=Path, help=f"text file, of which the first {TEXT_BYTES:,} bytes are taken")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part only (default: both)")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="these rows only (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each (default: 2)")
    arguments = parser.parse_args()
    arguments.part = arguments.part or list(PARTS)
    if "text" in arguments.part and (arguments.corpus is None or not arguments.corpus.is_file()):
        parser.error("--corpus names the text file to learn from (or give --part probes)")
    return arguments


def run_all(
    cases: list[Case], jobs: int, figures: Callable[[Case], dict], rows: list[str] | None
) -> list[tuple[Case, Path]]:
    """Train what has not finished, note and append its figures as it ends; returns what failed, with its log."""
    waiting = [case for case in cases if case.record() is None and (rows is None or case.row in rows)]
    # The longest first, so that none is left over at the end.
    waiting.sort(key=lambda case: -case.distance)
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
    for figure, unit in learning_tables.UNITS.items():
        if figure in values:
            record.append("learning", case.name, figure, [values[figure]], unit, learning_tables.COMMAND)


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


def text_figures(case: Case) -> dict:
    """Masked accuracy, loss, parameters, tokens per second."""
    evaluation, speed = _metrics(case)
    model = transformers.AutoModelForMaskedLM.from_pretrained(case.folder / "model")
    everything, outside = count_parameters(model)
    figures = {name: evaluation[name] for name in ("masked_accuracy", "loss")}
    return {**figures, "parameters": everything, "parameters_outside_embeddings": outside, **speed}


def count_baselines(work: Path, corpus: Path) -> None:
    """Figures of counting at the very positions that the models are evaluated at, with weights for as many masks."""
    path = work / "baselines.json"
    if path.is_file():
        return
    train, validation = (ShardedDataset(text_folder(work) / split) for split in ("train", "validation"))
    masker = make_objective(ObjectiveSection(), 0, train.manifest, None).evaluation_masker
    bigram = NeighbourBigram(train, np.arange(len(train)), masker)
    where = positions(validation, np.arange(len(validation)), masker, is_training=False)
    rows = {**most_frequent(bigram, where), "interpolated bigram": bigram.evaluate(where)}
    for row, figures in rows.items():
        for figure, value in figures.items():
            unit = learning_tables.UNITS[figure]
            record.append("learning", f"text, {row}", figure, [value], unit, learning_tables.COMMAND)
    about = {
        "corpus": f"{corpus.resolve().parent.name}/{corpus.name}",
        "bytes": (work / "data" / "corpus.txt").stat().st_size,
        "tokens": train.manifest.tokens,
        "masked": len(where),
        "vocabulary": train.manifest.vocab_size,
    }
    write_json(path, {"about": about, "rows": rows})


def made() -> dict[str, str]:
    """The command, commit and machine of a figure."""
    return {"date": datetime.date.today().isoformat(), "commit": record.commit(), "machine": record.machine()}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
