"""One `longmix finetune`: read and encode every task, train what is not yet trained, tabulate."""

import argparse
import hashlib
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from longmix.data_prep.errors import MachineFault, UserError, printable, refused
from longmix.data_prep.files import MARKER, make_folder, sha256_of_file
from longmix.data_prep.made_files import refuse_foreign_files
from longmix.data_prep.tokenizer import save_tokenizer

from ..many_runs import pool
from ..many_runs.read import MOST_SEEDS
from ..processes.signals import StopRequests
from ..settings.exit_codes import INTERRUPTED, USER_MISTAKE
from ..settings.mistakes import say
from .collect import collect
from .encode import EncodedTask, Encoder, encode_task, load_encoder
from .jobs import Job, begin, drop_checkpoints, is_finished, quiet, run_job
from .results import FILE_NAME, PAGE, Results, TaskResult, console, is_earlier
from .sources import MissingTask, load_custom, load_task
from .submission import refuse_foreign_submissions
from .tasks import FROM_MNLI_TASKS, TASKS

SUBMISSION = "submission"


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from: its tokenizer, saved below the output, and a hash of its contents."""

    checkpoint: str
    encoder: Encoder
    tokenizer_folder: Path
    identity: str


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0, or 75 when a signal asked to stop.

    Raises UserError for the user's mistakes, MachineFault when a run was killed, or has failed.
    """
    with StopRequests() as requests:
        return _run(arguments, requests)


def _run(arguments: argparse.Namespace, requests: StopRequests) -> int:
    names = _task_names(arguments)
    _check(arguments, names)
    output = Path(arguments.output)
    quiet()
    start = _identity(arguments.model)
    kept = _earlier_tasks(output, start, names)
    refuse_foreign_files(output, (FILE_NAME, PAGE), is_earlier)
    jobs, skipped = _prepare(arguments, names, output)
    if not jobs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UserError(f"none of the tasks can run: {reasons}")
    waiting = []
    for job in [job for group in jobs.values() for job in group]:
        if is_finished(job):
            drop_checkpoints(job)
        else:
            waiting.append(job)
    for name, reason in skipped.items():
        _say(f"skipping {name}: {reason}")
    reused = sum(map(len, jobs.values())) - len(waiting)
    if reused:
        _say(f"{reused} finished runs are used again")
    if kept:
        _say(f"the table keeps {', '.join(task.task for task in kept)} of earlier commands")
    results = Results(arguments.model, start, kept, skipped)
    remaining = {name: {job.folder for job in group if job in waiting} for name, group in jobs.items()}

    def close_tasks() -> None:
        done = {task.task for task in results.tasks}
        for name in jobs:
            if name not in done and not remaining[name]:
                results.tasks.append(collect(jobs[name], output / SUBMISSION))
                results.tasks.sort(key=lambda result: [*TASKS, "custom"].index(result.task))
                results.save(output)

    def finished(job: Job) -> None:
        remaining[job.task.name].discard(job.folder)
        _say(f"finished {job.name}")
        close_tasks()

    close_tasks()
    code = _run_all(arguments, waiting, requests, finished)
    if code == INTERRUPTED:
        _say("interrupted; the same command goes on from here")
    if code != 0:
        return code
    print(console(results))
    with_submission = ", submission/" if (output / SUBMISSION).is_dir() else ""
    print(printable(f"Written to {output}: results.json, results.md{with_submission}"))
    return 0


def _earlier_tasks(output: Path, start: str, names: list[str]) -> list[TaskResult]:
    """Results in `output` of the tasks that are not asked for now.

    Raises UserError if they are another checkpoint's.
    """
    earlier = Results.load(output)
    if earlier is None:
        return []
    if earlier.start != start:
        raise UserError(f"--output {output} holds the results of another checkpoint, {earlier.model}: choose another")
    return [task for task in earlier.tasks if task.task not in names]


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
        return _run_side_by_side(jobs, workers, gpus, finished)
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


def _task_names(arguments: argparse.Namespace) -> list[str]:
    wanted = list(dict.fromkeys(arguments.task))
    if "custom" in wanted and len(wanted) > 1:
        raise UserError("--task custom reads another kind of folder than GLUE's tasks; run it by itself")
    return list(TASKS) if "all" in wanted else wanted


def _check(arguments: argparse.Namespace, names: list[str]) -> None:
    """Raise UserError for values out of range and options that would do nothing, all at once."""
    problems = []
    for option in ("seeds", "epochs", "batch_size", "jobs"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            problems.append(f"--{option.replace('_', '-')} is {value}, but must be at least 1")
    if arguments.seeds > MOST_SEEDS:
        problems.append(f"--seeds is {arguments.seeds}, but must be at most {MOST_SEEDS:,}: each is a run")
    problems += [f"--lr is {rate:g}, but must lie in (0, 1]" for rate in arguments.lr if not 0 < rate <= 1]
    if "custom" not in names:
        given = [arguments.text_columns, arguments.label_column, arguments.regression or None]
        if any(value is not None for value in given):
            problems.append("--text-columns, --label-column and --regression belong to --task custom")
    if arguments.from_mnli and not set(names) & set(FROM_MNLI_TASKS):
        problems.append(f"--from-mnli is for {', '.join(FROM_MNLI_TASKS)}, none of which is asked for")
    if problems:
        raise UserError("; ".join(problems))


def _prepare(
    arguments: argparse.Namespace, names: list[str], output: Path
) -> tuple[dict[str, list[Job]], dict[str, str]]:
    """Read and encode every task before anything is trained: the jobs of each, and the reasons of those missing."""
    starts: dict[str, Start] = {}
    jobs, skipped = {}, {}
    for name in names:
        try:
            if name == "custom":
                columns = tuple(arguments.text_columns or ())
                data = load_custom(arguments.data, columns, arguments.label_column, regression=arguments.regression)
            else:
                data = load_task(arguments.data, TASKS[name])
        except MissingTask as reason:
            skipped[name] = str(reason)
            continue
        refuse_foreign_submissions(data.task, output / SUBMISSION)
        checkpoint = arguments.from_mnli if arguments.from_mnli and name in FROM_MNLI_TASKS else arguments.model
        if checkpoint not in starts:
            starts[checkpoint] = _start(checkpoint, arguments.max_length, output)
        start = starts[checkpoint]
        _say(f"{name}: {len(data.train)} training examples")
        encoded = encode_task(data, start.encoder, output / name / "data", start.tokenizer_folder)
        jobs[name] = _jobs(arguments, encoded, start, output / name)
    return jobs, skipped


# -----------------------------------------------------------------------------
# Checkpoints and jobs. What a run starts from is known by its contents, for a folder may be moved or written anew.


def _start(checkpoint: str, max_length: int | None, output: Path) -> Start:
    encoder = load_encoder(checkpoint, max_length)
    identity = _identity(checkpoint)
    folder = output / "tokenizers" / hashlib.sha256(identity.encode()).hexdigest()[:12]
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise refused(f"--output {output} cannot be used", error, "choose a folder to write to") from None
    save_tokenizer(encoder.tokenizer, folder)
    return Start(checkpoint, encoder, folder, identity)


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


def _jobs(arguments: argparse.Namespace, encoded: EncodedTask, start: Start, folder: Path) -> list[Job]:
    """The runs of one task below `folder`; learning rates that compete have folders of their own."""
    rates = list(dict.fromkeys(arguments.lr))
    return [
        Job(
            encoded,
            seed,
            rate,
            epochs=arguments.epochs or encoded.task.epochs,
            batch_size=arguments.batch_size,
            precision=arguments.precision,
            checkpoint=start.checkpoint,
            start=start.identity,
            folder=folder / (f"lr-{rate:g}" if len(rates) > 1 else "") / f"seed-{seed}",
        )
        for seed in range(arguments.seeds)
        for rate in rates
    ]
