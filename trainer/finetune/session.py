"""One `longmix finetune`: read and encode every task, train what is not yet trained, tabulate."""

import argparse
import hashlib
import math
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from longmix.data_prep.errors import MachineFault, UserError, printable, refused
from longmix.data_prep.files import MARKER, make_folder, sha256_of_file
from longmix.data_prep.made_files import refuse_foreign_files
from longmix.data_prep.tokenizer import save_tokenizer

from ..checkpoints.model_folders import told_model_folder
from ..many_runs import pool
from ..many_runs.finetuned import DATA
from ..models.loading import load_config
from ..processes.signals import StopRequests
from ..settings.exit_codes import INTERRUPTED, USER_MISTAKE
from ..settings.mistakes import say
from ..tables.figures import percent
from .collect import collect
from .custom import load_custom
from .encode import Encoder, encode_task, encoded_classes, load_encoder, selection_split
from .jobs import (
    DROPOUT_FIELDS,
    Job,
    begin,
    begun_rate,
    is_begun_without,
    quiet,
    run_job,
    selection_score,
    unknown_to,
)
from .options import task_names
from .plans import TaskPlan
from .rates import DEFAULT_LEARNING_RATE, default_learning_rate
from .readers import class_counts
from .relative_rates import is_relative_by_default
from .results import FILE_NAME, PAGE, Results, console, earlier_tasks, is_earlier
from .sources import MissingTask, TaskData, load_task
from .submission import SUBMISSIONS, missing_submissions, refuse_foreign_submissions
from .tasks import CLASS_METRICS, CUSTOM, FROM_MNLI_TASKS, TASKS, starts_after

SUBMISSION, INTERMEDIATE = "submission", "intermediate"


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from: its tokenizer, saved below the output, a hash of its contents, and what its
    configuration says of the model."""

    checkpoint: str
    encoder: Encoder
    tokenizer_folder: Path
    identity: str
    model_type: str
    width: int | None
    dropout_fields: tuple[str, ...]


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0, or 75 when a signal asked to stop.

    Raises UserError for the user's mistakes, MachineFault when a run was killed, or has failed.
    """
    with StopRequests() as requests:
        return _run(arguments, requests)


def _run(arguments: argparse.Namespace, requests: StopRequests) -> int:
    names = task_names(arguments)
    output = Path(arguments.output)
    quiet()
    given = arguments.model
    for option in ("model", "from_mnli"):
        if (source := getattr(arguments, option)) is not None:
            setattr(arguments, option, told_model_folder(source))
    start = _identity(arguments.model)
    kept = earlier_tasks(output, start, names)
    refuse_foreign_files(output, (FILE_NAME, PAGE), is_earlier)
    first, plans, skipped = _prepare(arguments, names, output)
    if not plans:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UserError(f"none of the tasks can run: {reasons}")
    for name, reason in skipped.items():
        _say(f"skipping {name}: {reason}")
    everything = [*first, *plans]
    reused = len({job.folder for plan in everything for job in plan.reused})
    if reused:
        _say(f"{reused} finished runs are used again")
    if kept:
        _say(f"the table keeps {', '.join(task.task for task in kept)} of earlier commands")
    results = Results(given, start, kept, skipped)

    def close_tasks() -> None:
        done = {task.task for task in results.tasks}
        for plan in plans:
            if plan.name not in done and plan.is_finished:
                results.tasks.append(collect(plan, output / SUBMISSION))
                results.save(output, names)

    def finished(job: Job) -> None:
        for plan in everything:
            plan.finished(job.folder)
        score = selection_score(job)
        _say(f"finished {job.name}: " + (f"selection score {percent(score)}" if score > -math.inf else "it diverged"))
        close_tasks()

    close_tasks()
    # Each round runs what waits for nothing; two plans may share a run.
    while ready := list({job.folder: job for plan in everything for job in plan.ready()}.values()):
        code = _run_all(arguments, ready, requests, finished)
        if code == INTERRUPTED:
            _say("interrupted; the same command goes on from here")
        if code != 0:
            return code
    print(console(results))
    with_submission = ", submission/" if (output / SUBMISSION).is_dir() else ""
    print(printable(f"Written to {output}: results.json, results.md{with_submission}"))
    if "all" in arguments.task and (missing := missing_submissions(output / SUBMISSION)):
        print(f"GLUE's server takes {len(SUBMISSIONS)} files; submission/ lacks {', '.join(missing)}")
    return 0


# -----------------------------------------------------------------------------
# Running. One process runs its jobs in turn; with several devices each job gets a process of its own.


def _run_all(
    arguments: argparse.Namespace, jobs: list[Job], requests: StopRequests, finished: Callable[[Job], None]
) -> int:
    gpus, workers = pool.places(arguments.jobs, len(jobs))
    if workers > 1:
        where = f"GPUs {', '.join(gpus)}" if gpus else "the CPU"
        _say(f"{len(jobs)} runs, {workers} side by side on {where}")
        # From here on the workers are asked, and this process waits for them.
        requests.has_begun = True
        code = _run_side_by_side(jobs, workers, gpus, finished)
        # Between two rounds there is nothing to save.
        requests.has_begun = False
        return code
    for job in jobs:
        _say(f"running {job.name}")
        code = run_job(job, requests)
        if code != 0:
            return code
        finished(job)
    return 0


def _run_side_by_side(jobs: list[Job], workers: int, gpus: list[str], finished: Callable[[Job], None]) -> int:
    """Run `jobs` in `workers` processes; when a run fails, the others are stopped as by a signal.

    Returns 0, or 75 after a signal.

    Raises UserError (the run failed by a mistake of the user) or MachineFault, with the last line of the run's log.
    """
    failures: list[tuple[Job, int]] = []

    def start(job: Job, worker: int) -> subprocess.Popen:
        begin(job)
        environment = pool.environment(gpus, worker, workers)
        return pool.start(["longmix.trainer.finetune"], job.folder, environment, TypeAdapter(Job).dump_json(job))

    def ended(job: Job, code: int, stopping: bool) -> bool:
        if code == 0:
            finished(job)
        elif code != INTERRUPTED and not stopping:
            failures.append((job, code))
        return code == 0

    is_complete = pool.run_side_by_side(jobs, workers, start, ended)
    if not failures:
        return 0 if is_complete else INTERRUPTED
    job, code = failures[0]
    log = pool.log_path(job.folder)
    if code < 0:
        # The log knows nothing of it.
        name = signal.Signals(-code).name
        raise MachineFault(f"{job.name} was killed by {name}; the same command goes on (log: {log})")
    last = pool.last_line(log) or f"exit code {code}"
    raise (UserError if code == USER_MISTAKE else MachineFault)(f"{job.name}: {last} (log: {log})")


def _say(text: str) -> None:
    say(f"longmix finetune: {text}")


# -----------------------------------------------------------------------------
# Preparing. All mistakes in arguments, data and checkpoints shall show before the first run begins.


def _prepare(
    arguments: argparse.Namespace, names: list[str], output: Path
) -> tuple[list[TaskPlan], list[TaskPlan], dict[str, str]]:
    """Read and encode every task before anything is trained: the plans of the intermediate task, if there is one, and
    of the tasks that are asked for, and the reasons of those missing.
    """
    starts: dict[str, Start] = {}

    def start_at(checkpoint: str) -> Start:
        if checkpoint not in starts:
            starts[checkpoint] = _start(checkpoint, arguments, output)
        return starts[checkpoint]

    first = []
    if arguments.intermediate is not None:
        try:
            data = _load_intermediate(arguments, output)
        except MissingTask as reason:
            raise UserError(
                f"--intermediate {arguments.intermediate}: {reason}; --intermediate-data names its folder"
            ) from None
        epochs = arguments.epochs if data.task.name in names else None
        first = [_plan(arguments, data, start_at(arguments.model), output, seeds=1, epochs=epochs)]
    plans, skipped = [], {}
    for name in names:
        try:
            data = _load(arguments.data, name, arguments, output / name)
        except MissingTask as reason:
            skipped[name] = str(reason)
            continue
        refuse_foreign_submissions(data.task, output / SUBMISSION)
        checkpoint = arguments.from_mnli if arguments.from_mnli and name in FROM_MNLI_TASKS else arguments.model
        after = first[0] if first and starts_after(name, arguments.intermediate) else None
        plans.append(
            _plan(
                arguments,
                data,
                start_at(checkpoint),
                output,
                seeds=arguments.seeds,
                epochs=arguments.epochs,
                after=after,
            )
        )
    return first, plans, skipped


def _load(data: str, name: str, arguments: argparse.Namespace, folder: Path) -> TaskData:
    """A task from `data`; its runs are in `folder`, if there are any."""
    if name != CUSTOM:
        return load_task(data, TASKS[name])
    return load_custom(
        data,
        arguments.text_columns,
        arguments.label_column,
        regression=arguments.regression,
        columns=arguments.columns,
        metric=arguments.metric or CLASS_METRICS[0],
        # Earlier versions had another order, and what they have begun goes on with it.
        begun_with=encoded_classes(folder / DATA),
    )


def _load_intermediate(arguments: argparse.Namespace, output: Path) -> TaskData:
    """The data of the intermediate task; one of the user's own is called "intermediate", beside which there may be
    another."""
    name = INTERMEDIATE if arguments.intermediate == CUSTOM else arguments.intermediate
    source = arguments.intermediate_data or arguments.data
    data = _load(source, arguments.intermediate, arguments, output / name)
    if data.task.custom:
        data.task = replace(data.task, name=name)
    return data


# -----------------------------------------------------------------------------
# Checkpoints and jobs. What a run starts from is known by its contents, for a folder may be moved or written anew.


def _start(checkpoint: str, arguments: argparse.Namespace, output: Path) -> Start:
    config = load_config(checkpoint)
    encoder = load_encoder(checkpoint, arguments.max_length)
    identity = _identity(checkpoint)
    folder = output / "tokenizers" / hashlib.sha256(identity.encode()).hexdigest()[:12]
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise refused(f"--output {output} cannot be used", error, "choose a folder to write to") from None
    save_tokenizer(encoder.tokenizer, folder)
    dropout_fields = tuple(name for name in DROPOUT_FIELDS if hasattr(config, name))
    if arguments.dropout is not None and not dropout_fields:
        raise UserError(f"--dropout: {checkpoint}, a {config.model_type}, has none of {', '.join(DROPOUT_FIELDS)}")
    width = getattr(config, "hidden_size", None)
    return Start(checkpoint, encoder, folder, identity, config.model_type, width, dropout_fields)


def _identity(checkpoint: str) -> str:
    """A hash of a local checkpoint's configuration and weights; the name itself for one on the hub."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return checkpoint
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        if path.name == MARKER:
            continue  # it says who made the folder, not what it holds
        digest.update(f"{path.name}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


def _plan(
    arguments: argparse.Namespace,
    data: TaskData,
    start: Start,
    output: Path,
    *,
    seeds: int,
    epochs: int | None,
    after: TaskPlan | None = None,
) -> TaskPlan:
    """Encode a task and make its jobs below `output`; learning rates that compete have folders of their own."""
    task = data.task
    held_out = len(selection_split(data.train, task)[1])
    _say(f"{task.name}: {len(data.train)} training examples, of which {held_out} choose the checkpoint")
    folder, notes = output / task.name, []
    if task.custom:
        if not task.regression:
            _say(f"{task.name}: {class_counts(data.train, task.label_names)}")
        without = data.train.without_text()
        if without:
            notes.append(f"{without:,} of {len(data.train):,} training examples have no text")
            _say(f"{task.name}: {notes[-1]}")
    # No version that read what lies beside a task has begun these runs, or it was not there yet.
    for split in task.splits_beside:
        if is_begun_without(folder, split.name) and data.test.pop(split.name, None) is not None:
            notes.append(f"begun without {split.beside[0]}/{split.file}: {split.submission} needs another --output")
    encoded = encode_task(data, start.encoder, folder / DATA, start.tokenizer_folder)
    for note in start.encoder.notes(encoded.tally, "training examples"):
        notes.append(note)
        _say(f"{task.name}: {note}")
    # What an earlier version has begun goes on as it was begun.
    unknown = unknown_to(folder)
    is_earlier_folder = "group_by_length" in unknown
    relative_lr = arguments.relative_lr
    if relative_lr is None:
        relative_lr = "relative_lr" not in unknown and is_relative_by_default(start.model_type)
    if arguments.lr is not None:
        rates = list(dict.fromkeys(arguments.lr))
    else:
        rates = [DEFAULT_LEARNING_RATE if is_earlier_folder else default_learning_rate(start.width, relative_lr)]
        origin = "an earlier version's" if is_earlier_folder else f"for a model of width {start.width or 'unknown'}"
        origin += " and relative rates" if relative_lr else ""
        notes.append(f"learning rate {rates[0]:g} by default, {origin}")
        _say(f"{task.name}: {notes[-1]}")
    rates = [begun_rate(folder, rate) for rate in rates]
    if relative_lr:
        notes.append("rates relative to the size of the weights")
    if is_earlier_folder:
        notes.append("begun by an earlier version: batches are not grouped by length")
    search_seeds = min(arguments.search_seeds or seeds, seeds)
    jobs = {
        rate: [
            Job(
                encoded,
                seed,
                rate,
                epochs=epochs or task.epochs,
                batch_size=arguments.batch_size,
                micro_batch=arguments.micro_batch,
                precision=arguments.precision,
                dropout=arguments.dropout,
                dropout_fields=start.dropout_fields,
                weight_decay=arguments.weight_decay,
                warmup_share=arguments.warmup_share,
                group_by_length=not is_earlier_folder,
                relative_lr=relative_lr,
                checkpoint=start.checkpoint,
                start=start.identity if after is None else after.identity,
                folder=folder / (f"lr-{rate:g}" if len(rates) > 1 else "") / f"seed-{seed}",
                competes=len(rates) > 1 and seed < search_seeds,
            )
            for seed in range(seeds)
        ]
        for rate in rates
    }
    return TaskPlan(jobs, search_seeds, after, notes, data.test_labels)
