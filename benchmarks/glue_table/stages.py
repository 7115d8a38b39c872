"""The stages of the table, one behind the other; what has finished is not run again."""

import contextlib
import json
import os
import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import commands
import record
import transformers
import yaml
from glue_table import controls
from glue_table.cases import STARTS, Case, Table

from longmix.data_prep.files import make_folder
from longmix.trainer.models.sizes import count_parameters

# What a run says that has diverged: a rate may.
DIVERGED = "that are not finite"
# Stage -> the figure that such a run lacks.
WITHOUT = {"search": "loss", "tuning": "scores"}


@dataclass(frozen=True)
class Part:
    """Which runs of a table are made.

    Attributes:
        seeds: of pre-training.
        tasks: fine-tuned on; none: pre-training alone.
    """

    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    starts: tuple[str, ...] = STARTS


@dataclass
class Runner:
    """Runs cases, `jobs` at a time with `threads` each.

    Attributes:
        failed: what has failed, with its log.
    """

    jobs: int
    threads: int
    failed: list[tuple[Case, Path]] = field(default_factory=list)

    def advance(self, table: Table, part: Part) -> None:
        """Everything of this part that has not finished; a row whose run fails goes no further, the others do."""
        self.measure(table, part)
        speeds = {row: found["tokens_per_second"] for row in part.rows if (found := table.measured(row))}
        # The slowest first, so that none is left over at the end.
        measured = sorted(speeds, key=speeds.get)
        self.run([case for row in measured for case in table.search(row)])
        self.run([case for row in measured for seed in part.seeds if (case := table.pretraining(row, seed))])
        rows = [row for row in measured if _is_trained(table, row, part.seeds)]
        if part.tasks:
            make_controls(table, part, rows)
        starts = [(row, start, task) for task in part.tasks for row in rows for start in part.starts]
        self.run([case for one in starts for case in table.tuning_search(*one)])
        for _ in table.budget.tuning_rates:  # a run that diverges or stands still is made again, with the next rate
            failed = [case.name for case, _ in self.failed]
            cases = [case for one in starts for seed in part.seeds if (case := table.tuning(*one, seed))]
            self.run([case for case in cases if case.name not in failed])

    def measure(self, table: Table, part: Part) -> None:
        """The speeds of all rows: no plan is made without."""
        self.run([case for row in part.rows for case in table.speed(row)])

    def run(self, cases: list[Case]) -> None:
        """Run what has not finished and note its figures as it ends."""
        waiting = [case for case in cases if case.record() is None]
        with ThreadPoolExecutor(self.jobs) as pool:
            running = {
                pool.submit(commands.timed_longmix, *self._prepared(case), **commands.one_card()): case
                for case in waiting
            }
            try:
                for future in as_completed(running):
                    # In this thread: transformers cannot load two models at the same time.
                    self._note(running[future], *future.result())
                    print(_outcome(running[future]), flush=True)
            except BaseException:
                # A signal has reached the runs too, and they save themselves; no other one begins.
                pool.shutdown(cancel_futures=True)
                raise

    def _prepared(self, case: Case) -> tuple[list[str], Path, int]:
        make_folder(case.folder.parent)
        return list(case.words), _log(case), self.threads

    def _note(self, case: Case, code: int, seconds: dict[str, float]) -> None:
        made = {"commit": record.commit(), "machine": record.machine(), "threads": self.threads}
        if code == 0:
            case.finish({**figures(case), **seconds, "made": made})
            tidy(case)
        elif case.stage in WITHOUT and DIVERGED in commands.last_line(_log(case)):
            case.finish({WITHOUT[case.stage]: None, **seconds, "made": made})
            tidy(case)
        else:
            self.failed.append((case, _log(case)))


def _log(case: Case) -> Path:
    return case.folder.with_name(f"{case.folder.name}.log")


def _outcome(case: Case) -> str:
    found = case.record()
    if found is None:
        return f"failed: {case.name}"
    told = [f"{name} {found[name]:.4g}" for name in ("loss", "masked_accuracy", "rate") if found.get(name) is not None]
    if found.get("scores"):
        told.append(f"scores {' '.join(f'{100 * score:.1f}' for score in found['scores'])}")
    return f"{case.name}: {', '.join(told) or 'diverged'} ({found['seconds']:.0f} s)"


def _is_trained(table: Table, row: str, seeds: tuple[int, ...]) -> bool:
    # A case's words change with the chosen rate, so its record is looked up through it.
    cases = [table.pretraining(row, seed) for seed in seeds]
    return all(case is not None and case.record() is not None for case in cases)


def make_controls(table: Table, part: Part, rows: list[str]) -> None:
    """The control models of these rows, where they are not there yet."""
    for row in rows:
        for seed in part.seeds:
            pretrained = table.start_folder(row, STARTS[0], seed)
            for start in part.starts:
                if start != STARTS[0]:
                    controls.make(pretrained, start, seed, table.start_folder(row, start, seed))


# -----------------------------------------------------------------------------
# What a finished run says. The record holds all of it: only what later stages start from is kept of the run itself.


def figures(case: Case) -> dict[str, object]:
    """The figures of a finished run."""
    return _tuned(case) if case.words[0] == "finetune" else _trained(case)


def _trained(case: Case) -> dict[str, object]:
    model = transformers.AutoModelForMaskedLM.from_pretrained(case.folder / "model")
    everything, outside = count_parameters(model)
    evaluations = commands.records(case.folder, "eval")
    steps = commands.records(case.folder, "train")
    tokens_of_a_step = steps[-1]["tokens_seen"] / steps[-1]["step"]
    # A run that was killed and went on may say twice what a step was.
    curve = {
        one["step"]: [round(one["step"] * tokens_of_a_step), one["masked_accuracy"], one["loss"]] for one in evaluations
    }
    return {
        "precision": yaml.safe_load((case.folder / "config.yaml").read_text(encoding="utf-8"))["precision"],
        "masked_accuracy": evaluations[-1]["masked_accuracy"],
        "loss": evaluations[-1]["loss"],
        "curve": [curve[step] for step in sorted(curve)],
        "tokens": steps[-1]["tokens_seen"],
        "tokens_per_second": statistics.median(one["tokens_per_second"] for one in steps),
        "parameters": everything,
        "parameters_outside_embeddings": outside,
    }


def _tuned(case: Case) -> dict[str, object]:
    (task,) = json.loads((case.folder / "results.json").read_text(encoding="utf-8"))["tasks"]
    (split,) = task["splits"]
    rate, score = task["settings"]["learning_rate"], split["figures"]["score"]
    if case.stage == "tuning search":
        return {"rate": rate}  # nothing that is reported follows from the one seed of a search
    return {
        "rate": rate,
        "scores": score["values"],
        "baseline": score["baseline"],
        "examples": split["samples"],
        "at_chance": sum(_is_at_chance(case.folder / task["task"] / f"seed-{seed}") for seed in task["seeds"]),
    }


def _is_at_chance(run: Path) -> bool:
    """Whether a run of fine-tuning ends without any correlation on the examples that its checkpoint is chosen on, as
    one does that answers the same to all.
    """
    return commands.records(run, "eval")[-1]["matthews"] == 0


def tidy(case: Case) -> None:
    """Remove what no later stage reads: of a pre-training run its checkpoints, of any other all."""
    shutil.rmtree(case.folder / "checkpoints" if case.stage == "pretraining" else case.folder, ignore_errors=True)


def cores() -> int:
    """Of this process: as many as it may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
