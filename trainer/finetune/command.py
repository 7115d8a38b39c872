"""`longmix finetune`: tasks, seeds and learning rates into one results table."""

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.tokenizer import save_tokenizer

from . import pool
from .collect import collect
from .encode import EncodedTask, Encoder, encode_task, load_encoder
from .jobs import Job, is_finished, make_job, run_job
from .results import Results, console
from .sources import MissingTask, load_custom, load_task
from .tasks import FROM_MNLI_TASKS, TASKS

DEFAULT_LEARNING_RATE = 5e-5

DESCRIPTION = """Fine-tune a checkpoint on GLUE, or on a task of your own, with several seeds, and tabulate the results.

The checkpoint is one of longmix or any Hugging Face encoder. Each task and seed is one run below OUTPUT/TASK; a run
that is finished is used again, an interrupted one goes on: give the same command again. The best checkpoint of a run
is chosen on a tenth of the training data; the dev set is read for the reported figures alone. OUTPUT holds
results.json, results.md, and submission/ with predictions of the test files in GLUE's format."""

EPILOG = """examples:
  longmix finetune --model runs/small/model --task cola --task sst2 --data glue --output runs/glue
  longmix finetune --model bert-base-uncased --task all --data hub:nyu-mll/glue --output runs/bert --seeds 3
  longmix finetune --model runs/small/model --task custom --data reviews --text-columns title body --label-column stars
                   --output runs/reviews

epochs by default: """


def add_finetune_parser(subparsers) -> argparse.ArgumentParser:
    """Add `finetune` to the command line; its arguments go to `run`."""
    parser = subparsers.add_parser(
        "finetune",
        help="fine-tune a checkpoint on GLUE or on a task of your own",
        description=DESCRIPTION,
        epilog=EPILOG + ", ".join(f"{task.name} {task.epochs}" for task in TASKS.values()) + ", custom 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, metavar="CHECKPOINT", help="folder or hub name to start from")
    parser.add_argument(
        "--task",
        required=True,
        action="append",
        choices=[*TASKS, "all", "custom"],
        help="a GLUE task (may be given several times), all of them, or a task of your own (custom)",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="FOLDER|hub:NAME",
        help="GLUE's folder (CoLA/train.tsv, ..., or cola/train-*.parquet as on the hub), a hub data set such as "
        "hub:nyu-mll/glue, or for custom a folder with train.tsv and dev.tsv",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of runs, results and submission")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each task, seeds 0 to N-1 (5)")
    parser.add_argument(
        "--lr",
        type=float,
        nargs="+",
        default=[DEFAULT_LEARNING_RATE],
        help=f"peak learning rate ({DEFAULT_LEARNING_RATE:g}); of several, the selection split chooses, for each task",
    )
    parser.add_argument("--epochs", type=int, help="passes over the training data (by task, see below)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in an optimizer step (32)")
    parser.add_argument("--max-length", type=int, help="longest input in tokens; longer ones are cut (128)")
    parser.add_argument(
        "--from-mnli",
        metavar="CHECKPOINT",
        help=f"start {', '.join(FROM_MNLI_TASKS)} from this checkpoint of MNLI, e.g. OUTPUT/mnli/seed-0/model",
    )
    parser.add_argument(
        "--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto", help="auto asks the device"
    )
    parser.add_argument(
        "--text-columns", nargs="+", metavar="NAME", help="custom: the column or two that hold the text"
    )
    parser.add_argument("--label-column", metavar="NAME", help="custom: the column of the class or value")
    parser.add_argument("--regression", action="store_true", help="custom: the label is a number")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs side by side (one for each GPU; 1 without); each sees one GPU"
    )
    return parser


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from: its tokenizer, saved below the output, and a hash of its contents."""

    checkpoint: str
    encoder: Encoder
    tokenizer_folder: Path
    identity: str


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0, or 75 when a signal asked to stop.

    Raises UserError for the user's mistakes.
    """
    names = _task_names(arguments)
    _check(arguments, names)
    output = Path(arguments.output)
    encoded, starts, skipped = _prepare(arguments, names, output)
    if not encoded:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UserError(f"none of the tasks can run: {reasons}")
    jobs = {name: _jobs(arguments, encoded[name], starts[name], output) for name in encoded}
    waiting = [job for group in jobs.values() for job in group if not is_finished(job)]
    for name, reason in skipped.items():
        _say(f"skipping {name}: {reason}")
    reused = sum(map(len, jobs.values())) - len(waiting)
    if reused:
        _say(f"{reused} finished runs are used again")
    results = Results(arguments.model, [], skipped)
    remaining = {name: {job.folder for job in group if job in waiting} for name, group in jobs.items()}

    def close_tasks() -> None:
        done = {task.task for task in results.tasks}
        for name in jobs:
            if name not in done and not remaining[name]:
                entry = encoded[name]
                results.tasks.append(collect(entry.task, jobs[name], entry.notes, output / "submission"))
                results.tasks.sort(key=lambda result: list(jobs).index(result.task))
                results.save(output)

    def finished(job: Job) -> None:
        remaining[job.task].discard(job.folder)
        _say(f"finished {job.name}")
        close_tasks()

    close_tasks()
    code = _run_all(arguments, waiting, finished)
    if code != 0:
        _say("interrupted; the same command goes on from here")
        return code
    print(console(results))
    print(
        f"Written to {output}: results.json, results.md" + (", submission/" if (output / "submission").is_dir() else "")
    )
    return 0


def _run_all(arguments: argparse.Namespace, jobs: list[Job], finished) -> int:
    gpus = pool.devices()
    workers = min(arguments.jobs or max(1, len(gpus)), max(1, len(jobs)))
    if workers > 1:
        where = f"GPUs {', '.join(gpus)}" if gpus else "the CPU"
        _say(f"{len(jobs)} runs, {workers} side by side on {where}")
        return pool.run_side_by_side(jobs, workers, gpus, finished)
    for job in jobs:
        _say(f"running {job.name}")
        code = run_job(job)
        if code != 0:
            return code
        finished(job)
    return 0


def _say(text: str) -> None:
    print(f"longmix finetune: {text}", file=sys.stderr, flush=True)


def _task_names(arguments: argparse.Namespace) -> list[str]:
    wanted = list(dict.fromkeys(arguments.task))
    if "custom" in wanted and len(wanted) > 1:
        raise UserError("--task custom reads another kind of folder than GLUE's tasks; run it by itself")
    return list(TASKS) if "all" in wanted else wanted


def _check(arguments: argparse.Namespace, names: list[str]) -> None:
    """Values out of range, and options that would do nothing; all at once."""
    problems = []
    for option in ("seeds", "epochs", "batch_size", "jobs"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            problems.append(f"--{option.replace('_', '-')} is {value}, but must be at least 1")
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
) -> tuple[dict[str, EncodedTask], dict[str, Start], dict[str, str]]:
    """Read and encode every task before anything is trained. Missing ones are in the last map, with the reason."""
    starts: dict[str, Start] = {}
    encoded, task_starts, skipped = {}, {}, {}
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
        checkpoint = arguments.from_mnli if arguments.from_mnli and name in FROM_MNLI_TASKS else arguments.model
        if checkpoint not in starts:
            starts[checkpoint] = _start(checkpoint, arguments.max_length, output)
        start = task_starts[name] = starts[checkpoint]
        _say(f"{name}: {len(data.train)} training examples")
        encoded[name] = encode_task(data, start.encoder, output / name / "data", start.tokenizer_folder)
    return encoded, task_starts, skipped


def _start(checkpoint: str, max_length: int | None, output: Path) -> Start:
    encoder = load_encoder(checkpoint, max_length)
    identity = _identity(checkpoint)
    folder = output / "tokenizers" / hashlib.sha256(identity.encode()).hexdigest()[:12]
    save_tokenizer(encoder.tokenizer, folder)
    return Start(checkpoint, encoder, folder, identity)


def _identity(checkpoint: str) -> str:
    """Hash of a local checkpoint's configuration and weights; the name itself for one on the hub."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return checkpoint
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{path.name}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


def _jobs(arguments: argparse.Namespace, encoded: EncodedTask, start: Start, output: Path) -> list[Job]:
    rates = list(dict.fromkeys(arguments.lr))
    return [
        make_job(
            encoded,
            output,
            seed=seed,
            learning_rate=rate,
            competing=len(rates) > 1,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            precision=arguments.precision,
            checkpoint=start.checkpoint,
            start=start.identity,
        )
        for seed in range(arguments.seeds)
        for rate in rates
    ]
