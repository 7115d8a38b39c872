"""The runs of one task: learning rates that compete on the first seeds, then the chosen one with all of them."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError

from .encode import EncodedTask
from .jobs import Job, drop_checkpoints, is_finished, selection_score


@dataclass
class TaskPlan:
    """The jobs of one task, which run in up to two rounds.

    Attributes:
        jobs: by learning rate, one for each seed.
        search_seeds: seeds on which learning rates compete, the first ones.
        after: the task whose model these jobs start from, in place of their own checkpoint.
        notes: lines for the results.
        test_labels: of the test split, where it is to be scored.

    Raises:
        UserError: at construction, if a run folder holds something else than its job's run.
    """

    jobs: dict[float, list[Job]]
    search_seeds: int
    after: "TaskPlan | None" = None
    notes: list[str] = field(default_factory=list)
    test_labels: list[int] | list[float] | None = None

    def __post_init__(self):
        self._unfinished: set[Path] = set()
        for job in self.all_jobs:
            if is_finished(job):
                drop_checkpoints(job)
            else:
                self._unfinished.add(job.folder)

    @property
    def all_jobs(self) -> list[Job]:
        """Every job that may run, whichever learning rate is chosen."""
        return [job for jobs in zip(*self.jobs.values(), strict=True) for job in jobs]

    @property
    def encoded(self) -> EncodedTask:
        return self.all_jobs[0].encoded

    @property
    def name(self) -> str:
        return self.encoded.task.name

    @property
    def searched(self) -> dict[float, list[Job]]:
        """The jobs that choose the learning rate, by rate; none where there is but one."""
        return {rate: jobs[: self.search_seeds] for rate, jobs in self.jobs.items()} if len(self.jobs) > 1 else {}

    def finished(self, folder: Path) -> None:
        """Note that the run in a folder is finished."""
        self._unfinished.discard(folder)

    @property
    def reused(self) -> list[Job]:
        """The jobs whose runs are finished, and need not run."""
        return [job for job in self.all_jobs if job.folder not in self._unfinished]

    @property
    def identity(self) -> str:
        """What the jobs of other tasks know this task's model by before there is one: all that it comes from."""
        settings = [jobs[0].settings() for jobs in self.jobs.values()]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def ready(self) -> list[Job]:
        """The unfinished jobs that can start now; those that need others' outcome come when these are finished."""
        if self.after is not None and not self.after.is_finished:
            return []
        jobs = self._left([job for jobs in self.searched.values() for job in jobs]) or self._left(self.chosen)
        return jobs if self.after is None else [replace(job, checkpoint=str(self.after.model)) for job in jobs]

    def _left(self, jobs: list[Job]) -> list[Job]:
        return [job for job in jobs if job.folder in self._unfinished]

    @property
    def is_finished(self) -> bool:
        return not self.ready() and (self.after is None or self.after.is_finished)

    @cached_property
    def learning_rate(self) -> float:
        """The learning rate that does best on the selection split, in the mean over the seeds that compete; the
        smallest of equals.

        Raises:
            UserError: training diverged with every one of them.
        """
        if len(self.jobs) == 1:
            return next(iter(self.jobs))
        means = {rate: np.mean([selection_score(job) for job in jobs]) for rate, jobs in sorted(self.searched.items())}
        best = max(means, key=means.get)
        if not np.isfinite(means[best]):
            raise UserError(f"{self.name}: training diverged with every learning rate: lower --lr")
        return best

    @property
    def chosen(self) -> list[Job]:
        """The jobs with the chosen learning rate, whose figures are reported. Call it once the search is finished."""
        return self.jobs[self.learning_rate]

    @property
    def model(self) -> Path:
        """The model of the first seed, that other tasks start from."""
        return self.chosen[0].folder / "model"
