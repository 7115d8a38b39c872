"""Collecting the finished runs of a task: its line in the results table, and its submission files."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.state_files import checked

from ..many_runs.finetuned import TEST
from ..samples.label_scale import LabelScale
from ..tables.figures import over_seeds, percent
from .encode import SELECTION
from .jobs import EARLIER_SETTINGS, Job, read_labels, read_predictions, selection_figures, selection_score
from .plans import TaskPlan
from .results import SearchedRate, SplitResult, TaskResult, summarize
from .submission import write_submission


def collect(plan: TaskPlan, submission: Path) -> TaskResult:
    """Score the finished runs of one task on its dev splits and on a labelled test split; write its submission files.

    Of several learning rates, the selection split has chosen one; of its seeds, the best on the selection split makes
    the submission.

    Raises UserError if training diverged with one of them.
    """
    chosen, encoded, task = plan.chosen, plan.encoded, plan.encoded.task
    for job in chosen:
        if not selection_figures(job):
            raise UserError(f"{job.name}: training diverged; leave this learning rate out of --lr")
    labels = {name: read_labels(encoded.folder / name) for name in encoded.dev}
    if plan.test_labels is not None:
        labels[TEST] = np.asarray(plan.test_labels)
    predictions = {name: np.stack([read_predictions(job, name) for job in chosen]) for name in labels}
    best = max(chosen, key=selection_score)
    for split in task.test:
        if split.name in encoded.test and split.submission is not None:
            indices = _indices(encoded.folder, split.name)
            scale = LabelScale.of_manifest(Manifest.load(encoded.folder / split.name))
            write_submission(task, indices, read_predictions(best, split.name), submission / split.submission, scale)
    seeds = [job.seed for job in chosen]
    notes = [*encoded.notes, *plan.notes, *_notes(plan)]
    result = summarize(task, seeds, labels, predictions, _settings(plan), notes)
    return replace(result, selection=_selection(chosen), search=_search(plan))


def _settings(plan: TaskPlan) -> dict[str, Any]:
    job = plan.chosen[0]
    own = {"metric": job.task.metrics[0]} if job.task.custom and not job.task.regression else {}
    values = own | {"learning_rate": job.learning_rate, "epochs": job.epochs, "batch_size": job.batch_size}
    # Said where it is not what it always was.
    values |= {
        name: getattr(job, name)
        for name in ("dropout", "weight_decay", "warmup_share")
        if getattr(job, name) != EARLIER_SETTINGS[name]
    }
    return {**values, "training_examples": plan.encoded.train_samples}


def _notes(plan: TaskPlan) -> Iterator[str]:
    if plan.searched:
        seeds = "1 seed" if plan.search_seeds == 1 else f"{plan.search_seeds} seeds"
        scores = ", ".join(
            f"{value.learning_rate:g} {'diverged' if value.mean is None else percent(value.mean)}"
            for value in _search(plan)
        )
        yield (
            f"learning rate {plan.learning_rate:g} chosen by the selection score of {seeds}, the smallest of equals: "
            f"{scores}"
        )
    if plan.after is not None:
        job = plan.after.chosen[0]
        yield (
            f"starts from a model that was first fine-tuned on {job.encoded.train_samples} examples of "
            f"{job.encoded.task.name} (seed {job.seed}, learning rate {job.learning_rate:g}, selection score "
            f"{percent(selection_score(job))})"
        )


def _search(plan: TaskPlan) -> list[SearchedRate]:
    """The learning rates that competed, with the selection score of each seed."""
    found = []
    for rate, jobs in sorted(plan.searched.items()):
        scores = [selection_score(job) for job in jobs]
        found.append(SearchedRate(rate, [score if math.isfinite(score) else None for score in scores]))
    return found


def _selection(jobs: list[Job]) -> SplitResult:
    """Figures of the selection split, of which checkpoints and learning rates are chosen."""
    runs = [selection_figures(job) for job in jobs]
    # Runs of earlier versions have fewer.
    names = [name for name in runs[0] if all(name in run for run in runs)]
    figures = {name: over_seeds([run[name] for run in runs]) for name in names}
    return SplitResult(SELECTION, Manifest.load(jobs[0].encoded.folder / SELECTION).samples, figures)


def _indices(folder: Path, split: str) -> list[str]:
    """The test file's own indices of the encoded samples. Raises UserError if the manifest does not have them."""
    manifest = Manifest.load(folder / split)
    try:
        indices = checked(manifest.report.get("indices"), list[str])
        if len(indices) != manifest.samples:
            raise ValueError(f"has {len(indices)} entries for {manifest.samples} samples")
    except ValueError as error:
        raise UserError(
            f"{folder / split / FILE_NAME} is damaged (report.indices: {reason_of(error)}): move {folder} away; the "
            "same command makes it again"
        ) from None
    return indices
