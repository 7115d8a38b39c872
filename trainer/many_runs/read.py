"""Reading run folders: whether a run is finished, its figures, and the model, data and machine behind them.

The figures are those of the `test` record of metrics.jsonl: the model of the checkpoint that was chosen on the
validation split (`checkpoint.best`), read on the test split once. A run without a test split gives those of the
validation split, and says so.
"""

import json
import os
import re
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.split_names import without_split
from longmix.data_prep.state_files import parse, read_json
from longmix.kernels.common.safe_files import read_input

from ..checkpoints.run_log import MODEL, OF_STEP
from ..settings import shuffling
from ..settings.objectives import OBJECTIVES
from ..settings.reading import PROVENANCE_KEY
from ..settings.run_file import MOST_BYTES, parse_yaml
from ..settings.sections import EVALUATION_MASK_PROBABILITY
from . import finetuned
from .run_values import checked_values, wrong_figure

CONFIG, METRICS, FAILURE, PLAN = "config.yaml", "metrics.jsonl", "failure.json", "sweep.json"
MODEL_CONFIG = Path("model", "config.json")
TEST, VALIDATION = "test", "validation"
# Of one command: each is a run.
MOST_SEEDS = 10_000
_LARGEST_METRICS = 2**31
# Settings of a task, as `longmix prepare` notes them, that make its samples longer or more, or that are measured on
# them. Data sets that differ in these alone are one task at several lengths.
_LENGTHS = ("length", "min_length", "max_length", "size", "patch_size", "points")
_COUNTS_OF_SAMPLES = ("samples", "train_samples", "validation_samples", "test_samples")
_MEASURED = ("vocabulary", "label_mean", "label_scale", "mean", "scale")
# Figures of an evaluation that are counts.
_COUNTS = ("items",)
# Where several figures are given, the first of these is the one that is compared.
PREFERRED = ("word_perplexity", "token_perplexity", "perplexity", "accuracy", "mse", "loss")


# -----------------------------------------------------------------------------
# One run. Everything is read from its own folder, so that one which was copied elsewhere says as much.


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        values: its config.yaml, as a map; empty if it failed before it had one.
        records: its metrics.jsonl.
        problem: why its figures do not count; None for a finished run.
    """

    folder: Path
    values: dict[str, Any]
    records: list[dict[str, Any]] = field(repr=False)
    problem: str | None

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of config.yaml."""
        found: Any = self.values
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return default if found is None else found

    @property
    def seed(self) -> int:
        return self.value("run.seed", 0)

    @property
    def model_type(self) -> str:
        return str(self.value("model.model_type") or self.model_fields.get("model_type", "unknown"))

    @cached_property
    def model_fields(self) -> dict[str, Any]:
        """The fields of the model's configuration, defaults included; empty if there is none."""
        try:
            fields = read_json(self.folder / MODEL_CONFIG)
        except (OSError, ValueError):
            return {}
        return fields if isinstance(fields, dict) else {}

    @property
    def data_name(self) -> str:
        """The folder of the training data, without the name of the split."""
        train = self.value("data.train", "")
        path = Path(train if isinstance(train, str) else str(train[0].get("path", "")))
        return without_split(path).name

    @property
    def task(self) -> str:
        """The name that `longmix prepare` gave the task; else the folder of the data."""
        task = self.task_settings.get("name", self.value("provenance.data.task"))
        return task if isinstance(task, str) else self.data_name

    @property
    def task_settings(self) -> dict[str, Any]:
        """The settings that the task's samples are a function of, as `longmix prepare` notes them; may be empty."""
        task = self.value("provenance.data.task")
        return task if isinstance(task, dict) else {}

    @cached_property
    def source(self) -> Path | None:
        """The user's own data of a fine-tuning; None of other runs, or where it is not to be found."""
        return finetuned.source(self.folder) if self.is_finetuned else None

    @property
    def dataset(self) -> str:
        """The file that the data were made from, if it is one and noted; else `data_name`."""
        if self.is_finetuned:
            return self.data_name if self.source is None else self.source.name
        source = self.value("provenance.data.task.source")
        # For a folder its SHA-256 is noted, which names nothing.
        is_name = isinstance(source, str) and re.fullmatch(r"[0-9a-f]{64}", source) is None
        return Path(source).stem if is_name else self.data_name

    def family(self, counts_matter: bool) -> str:
        """The settings that data sets of one task at several lengths have in common, as JSON.

        Args:
            counts_matter: whether those with other numbers of samples are others.
        """
        left_out = (*_LENGTHS, *_MEASURED, *(() if counts_matter else _COUNTS_OF_SAMPLES))
        settings = {name: value for name, value in self.task_settings.items() if name not in left_out}
        return json.dumps(settings, sort_keys=True, default=str)

    @property
    def objective(self) -> str:
        return str(self.value("objective.name", "mlm"))

    @property
    def evaluation_mask_probability(self) -> float | None:
        """The share of the tokens that evaluations hid; None: the objective hides none."""
        if self.objective not in OBJECTIVES or not OBJECTIVES[self.objective].hides_tokens:
            return None
        # Runs of earlier versions evaluated at the share of their training.
        of_training = self.value("objective.mask_probability", EVALUATION_MASK_PROBABILITY)
        return self.value("eval.mask_probability", of_training)

    @property
    def predicts_tokens(self) -> bool:
        """Whether the tokens themselves are predicted, whatever task's labels the data have."""
        return self.objective in OBJECTIVES and OBJECTIVES[self.objective].is_language_model

    @property
    def begun_in(self) -> Path | None:
        """The working directory that the run was begun in, if its folder lies there still, where run.dir says."""
        named, place = Path(self.value("run.dir", "/")), Path(os.path.realpath(self.folder))
        if named.is_absolute() or ".." in named.parts or place.parts[-len(named.parts) :] != named.parts:
            return None
        return place.parents[len(named.parts) - 1]

    @property
    def is_of_a_length(self) -> bool:
        """Whether the same command with another length makes the same task, so that the two are one curve.

        Of tasks that `longmix prepare` has made their settings tell that; the length of a user's own fine-tuning task
        is merely where its texts end, or were cut.
        """
        return not self.is_finetuned and (bool(self.task_settings) or self.horizon is not None)

    @property
    def length(self) -> int | None:
        """N: the longest sample; of a forecast, what it is made from."""
        return self.value("objective.input_length") or self.value("provenance.data.sequence_length")

    @property
    def horizon(self) -> int | None:
        return self.value("objective.horizon")

    @cached_property
    def is_finetuned(self) -> bool:
        """Whether it is a run of `longmix finetune`."""
        return finetuned.is_finetuned(self.folder)

    @property
    def split(self) -> str:
        """The split of the figures."""
        if self.is_finetuned:
            return finetuned.SELECTION
        return VALIDATION if self.value("data.test") is None else TEST

    @property
    def data_key(self) -> str:
        """The key of config.yaml that names the data of the figures."""
        return "data.test" if self.split == TEST else "data.eval"

    @cached_property
    def training(self) -> list[dict[str, Any]]:
        """Records of training, in order."""
        return [record for record in self.records if record["kind"] == "train"]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Records of the validation split, in order."""
        return [record for record in self.records if record["kind"] == "eval"]

    @cached_property
    def models(self) -> list[dict[str, Any]]:
        """Records of the models that were made, each in place of the one before; runs of earlier versions have none."""
        return [record for record in self.records if record["kind"] == MODEL]

    @cached_property
    def figures(self) -> dict[str, float]:
        """The figures of the checkpoint that validation has chosen, else of the last step; see `split`."""
        if self.split == TEST:
            found = [record for record in self.records if record["kind"] == "test"]
            return _numbers(found[-1]) if found else {}
        figures = _numbers(self._chosen()) if self.evaluations else {}
        if self.is_finetuned:
            figures |= finetuned.dev_figures(self.folder, self._task_name, self.seed, self.value("optim.lr"))
        return figures

    @property
    def reported_chances(self) -> dict[str, float]:
        """Accuracy of a fine-tuning's reported split -> what always answering its most frequent class reaches."""
        return finetuned.dev_chances(self.folder, self._task_name) if self.is_finetuned else {}

    @property
    def _task_name(self) -> str:
        """The task, as `longmix finetune` calls it."""
        name = self.value("provenance.data.task")
        return name if isinstance(name, str) else ""

    def _chosen(self) -> dict[str, Any]:
        best, every = self.value("checkpoint.best"), self.value("checkpoint.every_steps", 1)
        if best is None:
            return self.evaluations[-1]
        step = self.models[-1].get(OF_STEP) if self.models else None
        of_model = next((record for record in reversed(self.evaluations) if record["step"] == step), None)
        if of_model is not None:
            return of_model
        sign = 1 if best["mode"] == "max" else -1
        saved = [
            record
            for record in self.evaluations
            if record["step"] > 0
            and (record["step"] % every == 0 or record["step"] == self.value("optim.max_steps"))
            and record.get(best["metric"]) is not None
            and record.get("loss") is not None
        ]
        # Between equals the loss decides, then the earlier step, as in the run.
        return max(saved, key=lambda record: (sign * record[best["metric"]], -record["loss"]), default={})

    @property
    def metric(self) -> str | None:
        """The figure that is compared."""
        return next((name for name in (*PREFERRED, *self.figures) if name in self.figures), None)

    @cached_property
    def hours(self) -> float | None:
        """The hours of training: tokens between records by their speed; without evaluation, saving and starting."""
        seconds, before = 0.0, 0
        for record in self.training:
            tokens, speed = record.get("tokens_seen"), record.get("tokens_per_second")
            if tokens is None or not speed:
                return None
            seconds += (tokens - before) / speed
            before = tokens
        return seconds / 3600 if self.training else None

    @cached_property
    def tokens_per_second(self) -> float | None:
        """The median over the records of training."""
        speeds = [record["tokens_per_second"] for record in self.training if record.get("tokens_per_second")]
        return statistics.median(speeds) if speeds else None

    @property
    def samples_seen(self) -> int | None:
        """Samples that training has read; None if that was not noted."""
        return self.training[-1].get("samples_seen") if self.training else None

    @property
    def tokens_seen(self) -> int | None:
        """Tokens that training has read; None if that was not noted."""
        return self.training[-1].get("tokens_seen") if self.training else None

    @property
    def parameters(self) -> int | None:
        return self.value("provenance.parameters")

    @property
    def device(self) -> str | None:
        device, processes = self.value("provenance.device"), self.value("provenance.processes", 1)
        return device if device is None or processes == 1 else f"{processes} x {device}"

    @property
    def commit(self) -> str | None:
        """Short, with a + if files differed from it."""
        commit = self.value("provenance.git_commit")
        return None if commit is None else commit[:12] + ("+" if self.value("provenance.git_diff") else "")

    @property
    def fingerprints(self) -> Any:
        """The fingerprints of its data sets; None if they were not noted."""
        return self.value("provenance.data.fingerprints")

    @property
    def fingerprint(self) -> list[str] | None:
        """The fingerprints of the data of the figures, one for each source; None if they were not noted."""
        return self.fingerprints.get(self.data_key) if isinstance(self.fingerprints, dict) else None


# -----------------------------------------------------------------------------
# Run folders. Half a record, a damaged file or a run without an end is normal here: runs are killed.


def read_run(folder: Path) -> Run | None:
    """The run in a folder, finished or not; None if the folder is none of a run.

    Raises:
        UserError: its config.yaml is damaged, or is of something else.
    """
    failure = _failure(folder / FAILURE)
    try:
        text = read_input(folder / CONFIG, MOST_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None if failure is None else Run(folder, {}, [], f"failed before its first step: {failure}")
    except OSError as error:
        raise refused(f"{folder / CONFIG} cannot be read", error) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{folder / CONFIG} cannot be read: {error}") from None
    values = parse_yaml(text, str(folder / CONFIG))
    if not (isinstance(values, dict) and all(isinstance(values.get(name), dict) for name in ("run", "model", "data"))):
        raise UserError(f"{folder / CONFIG} is not that of a run: name run folders, or folders that hold some")
    values = checked_values(values, folder / CONFIG)
    if PROVENANCE_KEY in values:
        values["data"] = shuffling.earlier(values["data"], values.get("batch"))
    records, damage = _read_records(folder / METRICS)
    run = Run(folder, values, records, None)
    return Run(folder, values, records, damage or _problem(run, failure))


def is_finished(folder: Path, last_step: int) -> bool:
    """Tell whether the run in a folder has finished at `last_step`; one that finished at another step is to resume."""
    run = read_run(folder)
    return run is not None and run.problem is None and run.value("optim.max_steps") == last_step


def find_runs(paths: list[str]) -> list[Run]:
    """The runs in these folders and below them, in order of their names.

    Raises:
        UserError: a path is no folder, or there is no run in it; see `read_run`.
    """
    found: dict[str, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"{path} is {'a file' if path.exists() else 'missing'}: name folders of runs, or of sweeps")
        before = len(found)
        for folder, below, _ in os.walk(path):
            below.sort(key=_natural)
            run = read_run(Path(folder))
            if run is not None:
                below.clear()
                found.setdefault(os.path.realpath(folder), run)
        if len(found) == before and not any(place.startswith(os.path.realpath(path)) for place in found):
            raise UserError(f"{path} holds no run: name folders that longmix train or longmix sweep has written")
    return list(found.values())


def missing_seeds(runs: list[Run]) -> list[Path]:
    """Folders of runs that a sweep has planned, beside these, and that have not begun."""
    missing = []
    for parent in dict.fromkeys(run.folder.parent for run in runs):
        try:
            seeds = read_json(parent / PLAN)["seeds"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if type(seeds) is not int or not 0 < seeds <= MOST_SEEDS:
            raise UserError(f"{parent / PLAN}: seeds must be 1 to {MOST_SEEDS:,}: the file is damaged, move it away")
        planned = [parent / f"seed-{seed}" for seed in range(seeds)]
        missing += [folder for folder in planned if not any((folder / name).exists() for name in (CONFIG, FAILURE))]
    return missing


# -----------------------------------------------------------------------------
# Parts of a run folder. A run may be killed at any byte, so a record that cannot be read is passed over.


def _problem(run: Run, failure: str | None) -> str | None:
    """Why a run is not finished: only its end has made the model, after the last step and the reading of the test."""
    last = run.value("optim.max_steps")
    step = max((record["step"] for record in run.records), default=0)
    reason = None
    if not run.records:
        reason = f"{METRICS} is missing or empty"
    elif not any(record["kind"] == "train" and record["step"] == last for record in run.records):
        reason = f"stands at step {step} of {last}"
        losses = [record.get("loss") for record in run.records if record["kind"] == "train"]
        if len(losses) > 1 and losses[-1] is None and losses[-2] is None:
            reason += ", and the losses of its last steps were not finite"
    elif run.split == TEST and not any(r["kind"] == TEST and r["step"] == last for r in run.records):
        reason = "has not read its test split yet"
    elif not (run.folder / MODEL_CONFIG).is_file() or (run.models and run.models[-1]["step"] != last):
        reason = "has not written its model yet"
    if reason is None:
        return None
    return f"not finished: {reason}" if failure is None else f"failed at step {step} of {last}: {failure}"


def _failure(path: Path) -> str | None:
    """The reason that the sweep has noted for a run that failed."""
    try:
        return str(read_json(path)["reason"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"{path} is damaged"


def _read_records(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The records, and what is wrong with one whose figures are none: a kill cuts lines, but changes no figure."""
    if not path.is_file():
        return [], None  # never begun; or a named pipe, which would be waited for
    try:
        lines = read_input(path, _LARGEST_METRICS).split(b"\n")
    except OSError as error:
        return [], f"{METRICS} cannot be read: {error.strerror}"
    records, damage = [], None
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line, allows_nan=True)
            is_whole = type(record["step"]) is int and type(record["kind"]) is str
        except (ValueError, KeyError, TypeError, RecursionError):
            # Cut short by a kill.
            continue
        wrong = wrong_figure(record) if is_whole else None
        if wrong is not None:
            damage = damage or f"{METRICS}, line {number}: {wrong}: the file is damaged or edited"
        elif is_whole:
            records.append(record)
    return records, damage


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """The figures of a record; one that was not finite is NaN."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in record.items()
        if name not in ("kind", "step", *_COUNTS) and (value is None or type(value) in (int, float))
    }


def _natural(name: str) -> tuple:
    """seed-2 before seed-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
