"""One fine-tuning run: a task, a seed, a learning rate; its settings, its run folder, its run configuration, its
predictions.

A run folder is OUTPUT/TASK/seed-K (OUTPUT/TASK/lr-X/seed-K when several learning rates compete). `job.json` holds the
settings, `result.json` is written last and makes the run a finished one.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.parquet_columns import parquet_file
from longmix.data_prep.state_files import read_or_none, read_state

from ..checkpoints import folders
from ..many_runs.pool import log_path
from ..models.field_check import field_mistakes
from ..models.loading import load_model
from ..objectives import metrics
from ..objectives.labelled_samples import LabelledSamples
from ..processes import world as distributed
from ..processes.launch_environment import LAUNCH_VARIABLES
from ..processes.signals import StopRequests
from ..run import evaluation, loop
from ..samples.dataset import ShardedDataset
from ..samples.label_scale import LabelScale
from ..settings import reading
from ..settings.exit_codes import INTERRUPTED
from .encode import SELECTION, EncodedTask
from .relative_rates import relative_factors
from .tasks import Task

FEWEST_EVALUATIONS = 6
# Samples sorted by length at a time: padding is saved within, and reading stays in order.
WINDOW = 2048
JOB, RESULT = "job.json", "result.json"
# Settings that job.json has had since fine-tuning has options for them, as runs had them before.
EARLIER_SETTINGS = {
    "dropout": None,
    "weight_decay": 0.01,
    "warmup_share": 0.06,
    "group_by_length": False,
    "relative_lr": False,
}
# Fields of transformers' models and of ours that --dropout sets, where a model has them.
DROPOUT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


@dataclass(frozen=True)
class Job:
    """One run: a seed and a learning rate on an encoded task; equal settings give an equal run.

    Attributes:
        micro_batch: examples at a time, a divisor of batch_size; None: all. It changes the rounding alone: a run that
            has begun may go on with another.
        dropout: probability in place of the checkpoint's own, which None keeps.
        dropout_fields: fields of its model that hold one.
        warmup_share: share of the steps over which the learning rate rises.
        relative_lr: whether large weights have higher rates (see `relative_rates.relative_factors`).
        start: identifies the contents of the checkpoint.
        competes: whether another learning rate may be chosen, so that a diverging one loses and ends nothing.
    """

    encoded: EncodedTask
    seed: int
    learning_rate: float
    epochs: int
    batch_size: int
    micro_batch: int | None
    precision: str
    dropout: float | None
    dropout_fields: tuple[str, ...]
    weight_decay: float
    warmup_share: float
    group_by_length: bool
    relative_lr: bool
    checkpoint: str
    start: str
    folder: Path
    competes: bool

    @property
    def task(self) -> Task:
        return self.encoded.task

    @property
    def name(self) -> str:
        return f"{self.task.name}, seed {self.seed}, lr {self.learning_rate:g}"

    def settings(self) -> dict[str, Any]:
        """The content of job.json: what a finished run must agree in to be used again, wherever its folders lie."""
        return {
            "task": self.task.name,
            **{name: getattr(self, name) for name in ("seed", "learning_rate", "epochs", "batch_size", "precision")},
            **{name: getattr(self, name) for name in EARLIER_SETTINGS},
            "start": self.start,
            "fingerprint": self.encoded.fingerprint,
            "metrics": list(self.task.metrics),
            "regression": self.task.regression,
            "dev": list(self.encoded.dev),
            "test": list(self.encoded.test),
            "train_samples": self.encoded.train_samples,
        }


# -----------------------------------------------------------------------------
# The run file. Fine-tuning is `longmix train` with settings that suit small data sets: it has no loop of its own.


def run_values(job: Job) -> dict[str, Any]:
    """The run file of a job, as a map: linear decay after a warm-up, and the best checkpoint by the selection split."""
    steps = math.ceil(job.encoded.train_samples / job.batch_size) * job.epochs
    every = math.ceil(steps / max(FEWEST_EVALUATIONS, job.epochs))
    data = job.encoded.folder
    dropout = {} if job.dropout is None else dict.fromkeys(job.dropout_fields, job.dropout)
    # On a CPU always that of earlier versions, so that the seeds of a table are all computed alike.
    precision = "fp32" if job.precision == "auto" and not torch.cuda.is_available() else job.precision
    return {
        "run": {"dir": str(job.folder), "seed": job.seed},
        "model": {"from": job.checkpoint, **dropout},
        "data": {"train": str(data / "train"), "eval": str(data / SELECTION)},
        "objective": {"name": "regression" if job.task.regression else "classification"},
        "batch": {
            "samples": job.batch_size,
            "micro_batch": job.micro_batch or job.batch_size,
            "group_by_length": job.group_by_length,
        },
        "optim": {
            "lr": job.learning_rate,
            "betas": [0.9, 0.999],
            "weight_decay": job.weight_decay,
            "lr_factors": relative_factors(job.checkpoint) if job.relative_lr else {},
            "schedule": "linear",
            "warmup_steps": round(job.warmup_share * steps),
            "max_steps": steps,
        },
        "precision": precision,
        "deepspeed": None,
        "eval": {"every_steps": every, "samples": None},
        "checkpoint": {"every_steps": every, "keep": 1, "best": {"metric": job.task.metrics[0], "mode": "max"}},
        "log": {"every_steps": max(1, min(50, every)), "tensorboard": False},
    }


# -----------------------------------------------------------------------------
# Run folders. Only the same settings make a finished run the one that is asked for, so job.json is compared first.


def is_finished(job: Job) -> bool:
    """Tell whether the job's folder holds its finished run.

    Raises UserError when it holds a run with other settings, or something else.
    """
    folder = job.folder
    if not folder.exists():
        return False
    if not (folder / JOB).is_file():
        # A dot begins the name of what a killed process was writing.
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise UserError(f"{folder} holds something that is not a fine-tuning run; choose another --output")
        return False
    found, wanted = EARLIER_SETTINGS | read_state(folder / JOB, dict[str, Any], _remedy(job)), job.settings()
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        described = "; ".join(_difference(name, found.get(name), wanted[name]) for name in different)
        raise UserError(
            f"{folder} holds a run with other settings ({described}); choose another --output, or move it away"
        )
    return (folder / RESULT).is_file()


def begin(job: Job) -> None:
    """Make the run folder the job's: job.json says whose it is. Call it when `is_finished` has found it free.

    Raises UserError if the file beside it for its console output is somebody else's.
    """
    log = log_path(job.folder)
    if not (job.folder / JOB).is_file() and (log.is_symlink() or (log.exists() and log.stat().st_size)):
        raise UserError(f"{log} is not longmix's, and would be written to: move it away, or choose another --output")
    make_folder(job.folder)
    write_json(job.folder / JOB, job.settings())


def unknown_to(folder: Path) -> set[str]:
    """The names among EARLIER_SETTINGS that the version did not know by which runs of a task below `folder` were begun;
    none where there are no runs."""
    return set().union(*(set(EARLIER_SETTINGS) - set(settings) for settings in _begun(folder)))


def begun_rate(folder: Path, rate: float) -> float:
    """The learning rate by which runs of a task below `folder` were begun, if it is `rate` in six digits: earlier
    versions did not round their default. Else `rate`."""
    found = (settings.get("learning_rate") for settings in _begun(folder))
    return next((one for one in found if isinstance(one, float) and math.isclose(one, rate, rel_tol=1e-6)), rate)


def is_begun_without(folder: Path, split: str) -> bool:
    """Whether runs of a task below `folder` were begun without this test split."""
    splits = (settings.get("test") for settings in _begun(folder))
    return any(isinstance(names, list) and split not in names for names in splits)


def _begun(folder: Path) -> list[dict[str, Any]]:
    """The settings of the runs of a task below `folder`."""
    paths = [*folder.glob(f"seed-*/{JOB}"), *folder.glob(f"lr-*/seed-*/{JOB}")]
    found = (read_or_none(path, dict[str, Any]) for path in paths)
    return [settings for settings in found if settings is not None]


def _difference(name: str, found: Any, wanted: Any) -> str:
    if name == "start":
        return "another starting checkpoint"
    if name == "fingerprint":
        return "other data, tokenizer or --max-length"
    shown = (f"{value:g}" if isinstance(value, float) else value for value in (found, wanted))
    return "{} {}, now {}".format(name.replace("_", " "), *shown)


# -----------------------------------------------------------------------------
# Training and predicting. Both happen in one process that is its own world, on one device.


def quiet() -> None:
    """No progress bar for each of the many small models that are loaded and saved."""
    transformers.logging.disable_progress_bar()


def run_job(job: Job, requests: StopRequests) -> int:
    """Train, predict, write the result. Returns 0, or 75 when a signal asked to stop: the same call resumes later.

    Where there is nothing to save, before and after training, a signal ends the process at once, with 75.

    Raises UserError, and MachineFault, e.g. when training diverges.
    """
    folder, task, data = job.folder, job.task, job.encoded.folder
    if is_finished(job):
        return 0
    begin(job)
    try:
        code = train(run_values(job), requests)
    except loop.NotFiniteError as error:
        if not job.competes:
            raise
        write_json(folder / RESULT, {"selection": {}, "notes": [f"seed {job.seed}: {error}"]})
        drop_checkpoints(job)
        return 0
    requests.has_begun = False
    # One that came after the last step has not been obeyed.
    if code != 0 or requests.requested:
        return code or INTERRUPTED
    splits = (SELECTION, *job.encoded.dev, *job.encoded.test)
    with _alone() as world:
        predictions = {name: predict(folder / "model", data / name, task, job.batch_size, world) for name in splits}
    (folder / "predictions").mkdir(exist_ok=True)
    for name, values in predictions.items():
        write_json(folder / "predictions" / f"{name}.json", values.tolist())
    labels = read_labels(data / SELECTION)
    scores = metrics.evaluate(task.metrics, labels, predictions[SELECTION], task.further_metrics)
    # The error of predictions that are not finite is infinite, which no file of results holds.
    figures = {name: value for name, value in scores.values.items() if math.isfinite(value)}
    write_json(folder / RESULT, {"selection": {**figures, "score": scores.score}, "notes": list(scores.notes)})
    drop_checkpoints(job)
    return 0


def drop_checkpoints(job: Job) -> None:
    """Remove the checkpoints of a finished run, or those that a kill has left of them: model/ holds the best one, and
    the optimizer's state has served."""
    folders.remove_all(job.folder)


def train(values: dict[str, Any], requests: StopRequests) -> int:
    """Train one run in this process, alone; 0, or 75 when asked to stop. Raises NotFiniteError if it diverges."""
    checked = reading.from_dict(values, "longmix finetune", field_mistakes)
    with _alone(checked.run.hang_minutes) as world:
        try:
            return loop.train(checked, world, requests).code
        except loop.NotFiniteError as error:
            raise loop.NotFiniteError(f"{checked.run.dir}: training diverged, lower --lr ({error})") from error


@contextlib.contextmanager
def _alone(hang_minutes: float = 0.0) -> Iterator[distributed.World]:
    """This process as the only rank, whatever has launched the command."""
    before = {name: os.environ.pop(name, None) for name in LAUNCH_VARIABLES}
    world = distributed.join(hang_minutes)
    try:
        yield world
    finally:
        distributed.leave(world)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Window:
    """Samples in memory as the data set that an evaluation reads; where labels are wanted, they are 0."""

    def __init__(self, samples: list[dict[str, Any]]):
        self.samples = samples

    def read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        return [{"labels": 0, **self.samples[index]} for index in indices]


@torch.inference_mode()
def predict(model: Path, data: Path, task: Task, batch_size: int, world: distributed.World) -> np.ndarray:
    """(n,) int64 class indices, or float64 values for regression: the answers of a saved model in the data's order.

    Computed in float32 whatever the run's precision, on the first GPU if there is one: figures can be redrawn
    elsewhere.
    """
    dataset = ShardedDataset(str(data))
    objective = LabelledSamples(
        transformers.AutoModelForSequenceClassification, dataset.manifest.pad_token_id, task.regression, tolerance=None
    )
    loaded = load_model(str(model), objective.auto_class).to(world.device)
    answers = np.zeros(len(dataset), dtype=np.float64 if task.regression else np.int64)
    for start in range(0, len(dataset), WINDOW):
        samples = dataset.read(np.arange(start, min(start + WINDOW, len(dataset))))
        longest_first = np.argsort([-len(sample["input_ids"]) for sample in samples], kind="stable")
        _, outputs = evaluation.run(loaded, _Window(samples), objective, world, longest_first, batch_size)
        logits = np.concatenate(outputs)[:, :-1]
        answers[start + longest_first] = logits[:, 0] if task.regression else logits.argmax(axis=1)
    scale = LabelScale.of_manifest(dataset.manifest)
    return answers if scale is None else scale.given(answers)


@dataclass
class _Result:
    """The contents of result.json."""

    selection: dict[str, float]
    notes: list[str]


# -----------------------------------------------------------------------------
# Reading back. Predictions are kept as files, so that a table can be drawn again without a model.


def read_labels(folder: Path) -> np.ndarray:
    """The labels (n,) of a data set, int64 classes or float64 values."""
    manifest = Manifest.load(folder)
    parts = [
        parquet_file(folder / shard["file"]).read(columns=["labels"]).column("labels").to_numpy()
        for shard in manifest.shards
    ]
    labels, scale = np.concatenate(parts), LabelScale.of_manifest(manifest)
    if labels.dtype == np.int64:
        return labels
    return labels.astype(np.float64) if scale is None else scale.given(labels.astype(np.float64))


def read_predictions(job: Job, split: str) -> np.ndarray:
    """The predictions (n,) of a finished run: class indices, or values. Raises UserError for a damaged file."""
    path, remedy = job.folder / "predictions" / f"{split}.json", _remedy(job)
    is_number = job.task.regression
    # A model that has diverged predicts NaN.
    values = read_state(path, list[float] if is_number else list[int], remedy, allows_nan=is_number)
    samples = Manifest.load(job.encoded.folder / split).samples
    if len(values) != samples:
        raise UserError(f"{path} is damaged (it holds {len(values)} predictions for {samples} samples): {remedy}")
    if not is_number and not all(0 <= value < len(job.task.label_names) for value in values):
        raise UserError(f"{path} is damaged (it holds a class that the task does not have): {remedy}")
    return np.asarray(values, dtype=np.float64 if is_number else np.int64)


def selection_score(job: Job) -> float:
    """The mean of the task's metrics on the selection split, from a finished run; -inf if its training diverged.

    Raises UserError if the file is damaged.
    """
    return selection_figures(job).get("score", -math.inf)


def selection_figures(job: Job) -> dict[str, float]:
    """The task's metrics and their mean, "score", on the selection split, from a finished run; empty if it diverged.

    Raises UserError if the file is damaged.
    """
    return read_state(job.folder / RESULT, _Result, _remedy(job)).selection


def _remedy(job: Job) -> str:
    return f"move {job.folder} away; the same command makes that run again"
