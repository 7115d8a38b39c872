"""The runs of the table: each is a command of longmix, known by its name, with a record once it has finished."""

import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from glue_table.budget import Budget
from glue_table.data import TASKS, shown, task_folder, tokens_of_a_sample
from glue_table.rows import model_words

from longmix.data_prep.files import make_folder, write_json
from longmix.trainer.settings import reading
from longmix.trainer.settings.configuration import RunConfiguration

STARTS = ("pretrained", "random", "random at scale")
# Of the two runs that measure the speed.
SPEED_STEPS = (20, 120)
SINGLE = ("deepspeed=null", "log.tensorboard=false", "checkpoint.keep=1")


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        stage: speed | search | pretraining | tuning search | tuning.
        row: of the table.
        about: what else distinguishes it: rate, seed, start, task.
        words: of the command.
        folder: that the command writes.
        record_path: of its record.
    """

    stage: str
    row: str
    words: tuple[str, ...]
    folder: Path
    record_path: Path
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ", ".join([self.stage, self.row, *(f"{key} {value}" for key, value in self.about.items())])

    def record(self) -> dict[str, Any] | None:
        """Its record if it has finished with these words."""
        if not self.record_path.is_file():
            return None
        found = json.loads(self.record_path.read_text(encoding="utf-8"))
        return found if found["words"] == list(self.words) else None

    def finish(self, figures: dict[str, Any]) -> None:
        """Write its record: from here on it counts as finished."""
        make_folder(self.record_path.parent)
        about = {"stage": self.stage, "row": self.row, **self.about}
        write_json(self.record_path, {"about": about, "words": list(self.words), **figures})


@dataclass(frozen=True)
class Table:
    """The runs of one table: which there are follows from what has finished.

    Attributes:
        tasks: name -> sizes, of data.tasks.
    """

    work: Path
    budget: Budget
    corpus: Path
    tasks: dict[str, dict[str, int]]

    def speed(self, row: str) -> list[Case]:
        """Two runs, of a few steps and of more."""
        made = []
        for steps in SPEED_STEPS:
            words = self._train_words(row, steps, 0, self.budget.rates[0])
            made.append(self._case("speed", row, (*words, "eval.samples=8"), {"steps": steps}))
        return made

    def measured(self, row: str) -> dict[str, Any] | None:
        """Parameters, and tokens per second of training; None before both runs have finished.

        A GPU's are those by the clock, a core's follow from the difference of the runs' processor time: other work on
        the machine does not change it much.
        """
        short, long = (case.record() for case in self.speed(row))
        if short is None or long is None:
            return None
        spent = long["cpu_seconds"] - short["cpu_seconds"]
        is_by_core = not torch.cuda.is_available() and spent > 0
        speed = (long["tokens"] - short["tokens"]) / spent if is_by_core else long["tokens_per_second"]
        kept = ("parameters", "parameters_outside_embeddings")
        return {**{name: long[name] for name in kept}, "tokens_per_second": speed}

    def search(self, row: str) -> list[Case]:
        """Short pre-training with each rate, whole schedules of their own; none where there is one rate."""
        if len(self.budget.rates) == 1:
            return []
        steps = max(2, round(self.steps() * self.budget.search_share))
        return [
            self._case("search", row, self._train_words(row, steps, 0, rate), {"rate": rate})
            for rate in self.budget.rates
        ]

    def rate(self, row: str) -> float | None:
        """The rate of pre-training with the least loss; None before the search has finished, or where all diverged."""
        if len(self.budget.rates) == 1:
            return self.budget.rates[0]
        found = [(case.record(), case.about["rate"]) for case in self.search(row)]
        if any(record is None for record, _ in found):
            return None
        losses = {rate: record["loss"] for record, rate in found if record["loss"] is not None}
        return min(losses, key=losses.get, default=None)

    def pretraining(self, row: str, seed: int) -> Case | None:
        """None while there is no rate."""
        rate = self.rate(row)
        if rate is None:
            return None
        words = self._train_words(row, self.steps(), seed, rate, self.budget.evaluations, shown(self.corpus))
        return self._case("pretraining", row, words, {"seed": seed})

    def start_folder(self, row: str, start: str, seed: int) -> Path:
        """The model that fine-tuning starts from. A control has a draw for each seed of pre-training."""
        if start == "pretrained":
            return self._run_folder("pretraining", row, {"seed": seed}) / "model"
        return self.work / "controls" / row / f"{start.replace(' ', '-')}-{seed}"

    def tuning_search(self, row: str, start: str, task: str) -> list[Case]:
        """One run of one seed with each rate, from the first seed of pre-training, or the first draw; none where there
        is one rate."""
        if len(self.budget.tuning_rates) == 1:
            return []
        words = self._tune_words(row, start, 0, task, 1, self.budget.tuning_rates)
        return [self._case("tuning search", row, words, {"start": start, "task": task})]

    def tuning_rate(self, row: str, start: str, task: str) -> float | None:
        """The rate that the search has chosen; None before it has finished."""
        if len(self.budget.tuning_rates) == 1:
            return self.budget.tuning_rates[0]
        (search,) = self.tuning_search(row, start, task)
        found = search.record()
        return None if found is None else found["rate"]

    def tuning(self, row: str, start: str, task: str, seed: int) -> Case | None:
        """Every seed of fine-tuning, with the rate that was chosen or, where a seed diverges or does not begin to
        learn, the next smaller one; where that helps with no rate, the largest with which none diverges.

        None while there is no rate, and where a seed diverges with each.
        """
        tried = self.tried(row, start, task, seed)
        if not tried or not _is_replaced(tried[-1]):
            return tried[-1] if tried else None
        finished = [case for case in tried if case.record()["scores"] is not None]
        return finished[0] if finished else None

    def tried(self, row: str, start: str, task: str, seed: int) -> list[Case]:
        """The runs with the rate that was chosen and, as long as the one before is replaced, with each smaller rate;
        the last one may not have begun. None while there is no rate."""
        chosen, cases = self.tuning_rate(row, start, task), []
        if chosen is None:
            return cases
        smaller = sorted((rate for rate in self.budget.tuning_rates if rate < chosen), reverse=True)
        for rate in (chosen, *smaller):
            words = self._tune_words(row, start, seed, task, self.seeds_of(start), (rate,))
            about = {"start": start, "task": task, "seed": seed}
            cases.append(self._case("tuning", row, words, about if rate == chosen else {**about, "rate": rate}))
            if not _is_replaced(cases[-1]):
                break
        return cases

    def seeds_of(self, start: str) -> int:
        """Seeds of fine-tuning."""
        return self.budget.tuning_seeds if start == STARTS[0] else self.budget.control_seeds

    # -------------------------------------------------------------------------

    def tokens_of_a_step(self) -> float:
        """Padding does not count: samples hold one document each."""
        return samples_of_a_step(self.budget) * tokens_of_a_sample(self.corpus)

    def steps(self) -> int:
        return max(2, round(self.budget.tokens / self.tokens_of_a_step()))

    def _case(self, stage: str, row: str, words: tuple[str, ...], about: dict[str, Any]) -> Case:
        folder = self._run_folder(stage, row, about)
        output = f"run.dir={folder}" if words[0] == "train" else f"--output={folder}"
        record = self.work / "records" / folder.relative_to(self.work / "runs").with_suffix(".json")
        return Case(stage, row, (*words, output), folder, record, about)

    def _run_folder(self, stage: str, row: str, about: dict[str, Any]) -> Path:
        # No dots: what stands behind one would be taken for a suffix.
        names = [f"{key}-{value}".replace(" ", "-").replace(".", "_") for key, value in about.items()]
        return self.work / "runs" / stage.replace(" ", "-") / row / "-".join(names or ["run"])

    def _train_words(
        self, row: str, steps: int, seed: int, rate: float, evaluations: int = 1, held_out: str = "validation"
    ) -> tuple[str, ...]:
        files_and_fields = (str(self.budget.recipe), *model_words(row, self.budget.size))
        every = math.ceil(steps / evaluations)
        return (
            *("train", *files_and_fields, *self.budget.overrides, *SINGLE),
            *(f"data.train={self.corpus / 'train'}", f"data.eval={self.corpus / held_out}", f"run.seed={seed}"),
            *(f"optim.lr={rate:g}", f"optim.max_steps={steps}", f"eval.every_steps={every}", "eval.samples=null"),
            *(f"checkpoint.every_steps={math.ceil(steps / 5)}", f"log.every_steps={max(1, steps // 100)}"),
        )

    def _tune_words(
        self, row: str, start: str, seed: int, task: str, seeds: int, rates: tuple[float, ...]
    ) -> tuple[str, ...]:
        """The only place that knows the options of `longmix finetune`."""
        return (
            *("finetune", "--model", str(self.start_folder(row, start, seed)), *TASKS[task].words),
            *("--data", str(task_folder(self.work, task)), "--epochs", str(TASKS[task].epochs)),
            *("--seeds", str(seeds), "--lr", *(f"{rate:g}" for rate in rates), "--relative-lr"),
        )


def _is_replaced(case: Case) -> bool:
    """Whether a run of fine-tuning has finished, and one with a smaller rate takes its place."""
    found = case.record()
    return found is not None and (found["scores"] is None or found["at_chance"] > 0)


def samples_of_a_step(budget: Budget) -> int:
    return _resolved(budget).batch.samples


def decay_share(budget: Budget) -> float | None:
    """Of the steps, those at the end in which the rate falls; None: it falls all the time."""
    optim = _resolved(budget).optim
    return optim.decay_share if optim.schedule == "wsd" else None


@functools.cache
def _resolved(budget: Budget) -> RunConfiguration:
    """As the recipe, what it extends and the overrides say; the model and data change nothing."""
    placeholders = ("model.model_type=transformer", "data.train=none", "run.dir=none")
    return reading.load([str(budget.recipe)], [*placeholders, *budget.overrides])
