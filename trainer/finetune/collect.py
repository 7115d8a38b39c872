"""Collecting the finished runs of a task: its line in the results table, and its submission files."""

from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.state_files import checked

from .jobs import Job, read_labels, read_predictions, selection_score
from .results import TaskResult, summarize
from .submission import write_submission


def best_learning_rate(jobs: list[Job]) -> float:
    """The learning rate whose seeds do best on the selection split, in the mean; the smallest of equals."""
    rates = sorted({job.learning_rate for job in jobs})
    return max(rates, key=lambda rate: np.mean([selection_score(job) for job in jobs if job.learning_rate == rate]))


def collect(jobs: list[Job], submission: Path) -> TaskResult:
    """Score the finished runs of one task on its dev splits and write its submission files.

    Of several learning rates, the selection split chooses one; of its seeds, the best on the selection split makes the
    submission.
    """
    task, encoded, rates = jobs[0].task, jobs[0].encoded, sorted({job.learning_rate for job in jobs})
    rate = best_learning_rate(jobs)
    chosen = sorted((job for job in jobs if job.learning_rate == rate), key=lambda job: job.seed)
    labels = {name: read_labels(encoded.folder / name) for name in encoded.dev}
    predictions = {name: np.stack([read_predictions(job, name) for job in chosen]) for name in encoded.dev}
    settings = {"learning_rate": rate, "epochs": chosen[0].epochs, "batch_size": chosen[0].batch_size}
    settings["training_examples"] = encoded.train_samples
    notes = list(encoded.notes)
    if len(rates) > 1:
        tried = ", ".join(f"{value:g}" for value in rates)
        notes.append(f"learning rate {rate:g} chosen on the selection split among {tried}")
    best = max(chosen, key=selection_score)
    for split in task.test:
        if split.name in encoded.test and split.submission is not None:
            indices = _indices(encoded.folder, split.name)
            write_submission(task, indices, read_predictions(best, split.name), submission / split.submission)
    return summarize(task, [job.seed for job in chosen], labels, predictions, settings, notes)


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
