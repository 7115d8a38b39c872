"""One fine-tuning run: a task, a seed, a learning rate; its settings, its run folder, its run configuration, its
predictions.

A run folder is OUTPUT/TASK/seed-K (OUTPUT/TASK/lr-X/seed-K when several learning rates compete). `job.json` holds the
settings, `result.json` is written last and makes the run a finished one.
"""

import json
import math
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_json
from longmix.data_prep.manifest import Manifest

from ..objectives import metrics as task_metrics
from ..processes.signals import StopRequests
from ..runs.pool import LAUNCH_VARIABLES
from ..settings.exit_codes import INTERRUPTED
from .encode import EncodedTask
from .predict import predict

WARMUP_SHARE = 0.06
FEWEST_EVALUATIONS = 6
JOB, RESULT = "job.json", "result.json"


@dataclass(frozen=True)
class Job:
    """Settings of one run, complete: equal settings give an equal run. `start` identifies the checkpoint's contents."""

    task: str
    seed: int
    learning_rate: float
    epochs: int
    batch_size: int
    precision: str
    checkpoint: str
    start: str
    data: str
    fingerprint: str
    folder: str
    metrics: tuple[str, ...]
    regression: bool
    dev: tuple[str, ...]
    test: tuple[str, ...]
    train_samples: int

    @property
    def name(self) -> str:
        return f"{self.task}, seed {self.seed}, lr {self.learning_rate:g}"

    def settings(self) -> dict[str, Any]:
        """What a finished run must agree in to be used again; where its folders lie is not among it."""
        values = json.loads(json.dumps(asdict(self)))
        return {name: value for name, value in values.items() if name not in ("checkpoint", "data", "folder")}

    @classmethod
    def from_settings(cls, values: dict[str, Any]) -> "Job":
        """A job from its JSON form."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def make_job(
    encoded: EncodedTask,
    output: Path,
    *,
    seed: int,
    learning_rate: float,
    competing: bool,
    epochs: int | None,
    batch_size: int,
    precision: str,
    checkpoint: str,
    start: str,
) -> Job:
    """The job of one seed; `competing` says whether several learning rates are tried."""
    task = encoded.task
    folder = output / task.name
    if competing:
        folder /= f"lr-{learning_rate:g}"
    return Job(
        task=task.name,
        seed=seed,
        learning_rate=learning_rate,
        epochs=epochs or task.epochs,
        batch_size=batch_size,
        precision=precision,
        checkpoint=checkpoint,
        start=start,
        data=str(encoded.folder),
        fingerprint=encoded.fingerprint,
        folder=str(folder / f"seed-{seed}"),
        metrics=task.metrics,
        regression=task.regression,
        dev=encoded.dev,
        test=encoded.test,
        train_samples=encoded.train_samples,
    )


def run_values(job: Job) -> dict[str, Any]:
    """The run file of a job, as a map: linear decay after a warm-up of 6 %, and the best checkpoint by the selection
    split.
    """
    steps = math.ceil(job.train_samples / job.batch_size) * job.epochs
    every = math.ceil(steps / max(FEWEST_EVALUATIONS, job.epochs))
    data = Path(job.data)
    return {
        "run": {"dir": job.folder, "seed": job.seed},
        "model": {"from": job.checkpoint},
        "data": {"train": str(data / "train"), "eval": str(data / "selection")},
        "objective": {"name": "regression" if job.regression else "classification"},
        "batch": {"samples": job.batch_size, "micro_batch": job.batch_size},
        "optim": {
            "lr": job.learning_rate,
            "betas": [0.9, 0.999],
            "schedule": "linear",
            "warmup_steps": round(WARMUP_SHARE * steps),
            "max_steps": steps,
        },
        "precision": job.precision,
        "deepspeed": None,
        "eval": {"every_steps": every, "samples": None},
        "checkpoint": {"every_steps": every, "keep": 1, "best": {"metric": job.metrics[0], "mode": "max"}},
        "log": {"every_steps": max(1, min(50, every)), "tensorboard": False},
    }


def is_finished(job: Job) -> bool:
    """Whether the job's folder holds its finished run.

    Raises UserError when it holds a run with other settings, or something else.
    """
    folder = Path(job.folder)
    if not folder.exists():
        return False
    if not (folder / JOB).is_file():
        # A dot begins the name of what a killed process was writing.
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise UserError(f"{folder} holds something that is not a fine-tuning run; choose another --output")
        return False
    found, wanted = json.loads((folder / JOB).read_text(encoding="utf-8")), job.settings()
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        described = "; ".join(_difference(name, found.get(name), wanted[name]) for name in different)
        raise UserError(f"{folder} holds a run with other settings ({described}); choose another --output or delete it")
    return (folder / RESULT).is_file()


def _difference(name: str, found: Any, wanted: Any) -> str:
    if name == "start":
        return "another starting checkpoint"
    if name == "fingerprint":
        return "other data, tokenizer or --max-length"
    return f"{name.replace('_', ' ')} {found}, now {wanted}"


def quiet() -> None:
    """No progress bar for each of the many small models that are loaded and saved."""
    import transformers

    transformers.logging.disable_progress_bar()


def run_job(job: Job, requests: StopRequests) -> int:
    """Train, predict, write the result. Returns 0, or 75 when a signal asked to stop: the same call goes on later.

    Where there is nothing to save, before and after training, a signal ends the process at once, with 75.

    Raises UserError, e.g. when training diverges.
    """
    folder = Path(job.folder)
    if is_finished(job):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JOB, job.settings())
    code = train(run_values(job), requests)
    requests.has_begun = False
    # One that came after the last step has not been obeyed.
    if code != 0 or requests.requested:
        return code or INTERRUPTED
    predictions = {
        name: predict(folder / "model", Path(job.data) / name, job.batch_size, regression=job.regression)
        for name in ("selection", *job.dev, *job.test)
    }
    (folder / "predictions").mkdir(exist_ok=True)
    for name, values in predictions.items():
        write_json(folder / "predictions" / f"{name}.json", values.tolist())
    scores = task_metrics.evaluate(job.metrics, read_labels(Path(job.data) / "selection"), predictions["selection"])
    write_json(folder / RESULT, {"selection": {**scores.values, "score": scores.score}, "notes": list(scores.notes)})
    # model/ holds the best checkpoint; the optimizer's state has served.
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return 0


def train(values: dict[str, Any], requests: StopRequests) -> int:
    """Train one run in this process, alone; 0, or 75 when it was asked to stop. Raises UserError when it diverges."""
    from ..models.field_check import field_mistakes
    from ..processes import world as distributed
    from ..run import loop
    from ..settings import reading

    checked = reading.from_dict(values, "longmix finetune", field_mistakes)
    before = {name: os.environ.pop(name, None) for name in LAUNCH_VARIABLES}
    world = distributed.join(checked.run.hang_minutes)
    try:
        return loop.train(checked, world, requests).code
    except loop.NotFiniteError as error:
        raise UserError(f"{checked.run.dir}: training diverged, lower --lr ({error})") from error
    finally:
        distributed.leave(world)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def read_labels(folder: Path) -> np.ndarray:
    """The labels (n,) of a data set, int64 classes or float64 values."""
    import pyarrow.parquet

    manifest = Manifest.load(folder)
    parts = [
        pyarrow.parquet.ParquetFile(folder / shard["file"]).read(columns=["labels"]).column("labels").to_numpy()
        for shard in manifest.shards
    ]
    labels = np.concatenate(parts)
    return labels if labels.dtype == np.int64 else labels.astype(np.float64)


def read_predictions(job: Job, split: str) -> np.ndarray:
    """The predictions (n,) of a finished run: class indices, or values."""
    values = json.loads((Path(job.folder) / "predictions" / f"{split}.json").read_text(encoding="utf-8"))
    return np.asarray(values, dtype=np.float64 if job.regression else np.int64)


def selection_score(job: Job) -> float:
    """Mean of the task's metrics on the selection split, of a finished run."""
    return json.loads((Path(job.folder) / RESULT).read_text(encoding="utf-8"))["selection"]["score"]
