"""The command `longmix`: verbs, their help, and exit codes.

0: finished. 2: the user's mistake, one line. 75: interrupted, the same command goes on. 1: ours.
"""

import argparse
import os
import sys
import time
import traceback

from longmix.data_prep import command as prepare_command
from longmix.data_prep.errors import UserError

from .processes import launch
from .processes.signals import StopRequests
from .report import command as report_command

EXIT_CODES = (
    "Exit codes: 0 finished, 2 a mistake of yours (one line says which), 75 interrupted (run it again), 1 ours."
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; `argv` without the program's name. Returns the exit code."""
    arguments = _parse(argv)
    try:
        return arguments.run(arguments)
    except UserError as error:
        # Every worker of a run finds the same mistake; one tells it.
        if os.environ.get("RANK", "0") == "0":
            _tell(error)
        return launch.USER_MISTAKE
    except KeyboardInterrupt:
        print("longmix: interrupted", file=sys.stderr)
        return launch.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing left to say, and nowhere to say it.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return launch.OURS


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and hasattr(arguments, "settings") and not any(text.startswith("-") for text in rest):
        # argparse takes a list of positional arguments in one piece: changes may stand behind options, too.
        arguments.settings += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


class _Parser(argparse.ArgumentParser):
    """argparse's own errors in the same one line."""

    def error(self, message: str):
        print(f"longmix: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(launch.USER_MISTAKE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="longmix",
        description="Pre-train and fine-tune sub-quadratic encoders: text -> shards -> DeepSpeed -> from_pretrained.",
        epilog=EXIT_CODES,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    prepare_command.add_prepare_parser(verbs)
    _add_train(verbs)
    _add_sweep(verbs)
    report_command.add_report_parser(verbs)
    _add_inspect_order(verbs)
    from .finetune.command import add_finetune_parser

    add_finetune_parser(verbs)
    _add_evaluate(verbs)
    _add_export(verbs)
    _add_requeue(verbs)
    doctor = verbs.add_parser(
        "doctor",
        help="what a bug report needs, and what is wrong here",
        description="Print versions, devices and whether this torch supports them, precisions, compilers and which "
        "kernels will run; then what is wrong, with its remedy. Exit code 1 if something is.",
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _add_train(verbs) -> None:
    parser = verbs.add_parser(
        "train",
        help="train a model as a run file says; go on where its run folder stands",
        description="Train as one or several run files say. With a run folder that holds a checkpoint, go on from it.",
        epilog="Example: longmix train configs/pretrain_s3attention.yaml data.train=DATA/train "
        "data.eval=DATA/validation run.dir=runs/first optim.max_steps=2000. " + EXIT_CODES,
    )
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="CONFIG | KEY=VALUE",
        help="run files (YAML; a run folder means its config.yaml), merged in order, and changes such as optim.lr=3e-4",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="worker processes on this machine (default: one per GPU, 1 without)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="validate, count parameters, estimate memory and steps, and leave without training",
    )
    parser.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> int:
    from .settings import configuration as configurations

    paths, overrides = _split(arguments.settings)
    if arguments.processes is not None and arguments.processes < 1:
        raise UserError(f"--processes is {arguments.processes}, but must be at least 1")
    if arguments.check:
        return _check(configurations.load(paths, overrides), arguments.processes)
    launch.leave_with_launcher()
    # Noted from here on: what is imported and built next takes long, and the signal must not end it half-way.
    with StopRequests() as requests:
        processes = 1 if launch.is_worker() else arguments.processes or _devices()
        configuration = configurations.load(paths, overrides, model_later=processes > 1)
        if processes == 1:
            return _train_as_rank(configuration, requests)
        from .data.run_data import check_processes, open_data

        check_processes(configuration, processes)
        open_data(configuration)
        # From here on the workers are asked, and this process waits for them.
        requests.has_begun = True
        return launch.launch(["train", *arguments.settings], processes, requests)


def _add_sweep(verbs) -> None:
    parser = verbs.add_parser(
        "sweep",
        help="train several run files with several seeds each, one process for each device",
        description="Train every run file with every seed; the runs are run.dir/seed-N, and what they say goes to "
        "run.dir/seed-N.log. Finished runs stay, interrupted ones go on, and the same command runs failed ones again. "
        "longmix report makes the tables.",
        epilog="Example: longmix sweep configs/listops_flt.yaml configs/listops_wavspa.yaml --seeds 5 "
        "optim.max_steps=2000. " + EXIT_CODES,
    )
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="CONFIG | KEY=VALUE",
        help="run files, each an experiment of its own with its own run.dir, and changes for all of them",
    )
    _add_sweep_options(parser)
    parser.set_defaults(run=_sweep)


def _add_sweep_options(parser) -> None:
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 for each run file (5)")
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs side by side (one for each GPU; 1 without); each sees one GPU"
    )
    parser.add_argument(
        "--share", metavar="I/N", help="only the I-th of N shares of the runs, from 0 (slurm/sweep.sh uses it)"
    )


def _sweep(arguments: argparse.Namespace) -> int:
    from .runs.sweep import run_command

    return run_command(arguments)


def _add_inspect_order(verbs) -> None:
    parser = verbs.add_parser(
        "inspect-order",
        help="which samples a step of a run uses, without running it",
        description="List the samples of one step in the order of reading: rank, source, epoch, sample, and the shard "
        "and row that hold it. Only manifests are read, and any step is as near as the first.",
        epilog="Example: longmix inspect-order runs/first --step 90000 --processes 8",
    )
    parser.add_argument("settings", nargs="+", metavar="CONFIG | KEY=VALUE", help="as for longmix train")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step; the first is 1")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="ranks that share it (default: 1)")
    parser.set_defaults(run=_inspect_order)


def _inspect_order(arguments: argparse.Namespace) -> int:
    from .commands.inspect_order import samples_of_step
    from .settings import configuration

    checked = configuration.load(*_split(arguments.settings), model_later=True)
    for line in samples_of_step(checked, arguments.step, arguments.processes):
        print(line)
    return 0


def _split(settings: list[str]) -> tuple[list[str], list[str]]:
    """Run files, and changes KEY=VALUE, of which a command was given both in one list."""
    overrides = [text for text in settings if "=" in text and not os.path.exists(text)]
    paths = [text for text in settings if text not in overrides]
    if not paths:
        raise UserError("name at least one run file before the changes; configs/ holds examples")
    return paths, overrides


def _check(configuration, processes: int | None) -> int:
    """Describe the run for `processes`; of several workers (torchrun, srun) the first does it for all."""
    from .commands.check import report

    if launch.is_worker():
        if os.environ["RANK"] != "0":
            return 0
        processes = int(os.environ["WORLD_SIZE"])
    print(report(configuration, processes or _devices()))
    return 0


def _devices() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def _train_as_rank(configuration, requests: StopRequests) -> int:
    """Train as one rank. Ranks leave together; one that fails leaves at once, with its reason."""
    from transformers.utils import logging as transformers_logging

    from .processes import world as distributed
    from .run import loop
    from .run.agreement import DisagreementError

    # A bar for each checkpoint that is written would cut through the progress line.
    transformers_logging.disable_progress_bar()
    world = distributed.join(configuration.run.hang_minutes)
    try:
        code = loop.train(configuration, world, requests).code
    except loop.SharedMistake as mistake:
        # Told before any rank leaves: what watches over them may end the others when the first has left.
        if world.is_first:
            _tell(mistake)
        code = launch.USER_MISTAKE
    except (loop.NotFiniteError, DisagreementError) as error:
        if world.is_first:
            _tell(error)
        code = launch.OURS
    except Exception as error:
        if isinstance(error, UserError):
            _tell(error)
            code = launch.USER_MISTAKE
        elif distributed.is_lost_rank(error):
            # The lost rank, or whoever started it, tells the reason first.
            time.sleep(1.0)
            print(f"longmix: rank {world.rank} ends, because another rank has gone", file=sys.stderr)
            code = launch.OURS
        else:
            print(f"longmix: rank {world.rank} failed: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
            code = launch.OURS
        sys.stderr.flush()
        if world.size > 1:
            # The other ranks wait in an exchange: no orderly way out.
            os._exit(code)
        return code
    distributed.leave(world)
    if world.size > 1:
        # Threads of the exchange may outlive its end and abort an ordinary exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell(mistake: Exception) -> None:
    print(f"longmix: error: {mistake}", file=sys.stderr, flush=True)


def _add_evaluate(verbs) -> None:
    parser = verbs.add_parser(
        "evaluate",
        help="loss and accuracy of a checkpoint on a data set, or completions of a text with [MASK]",
        description="Figures of a checkpoint (ours, or any of transformers) on a prepared data set, with fixed masks; "
        "of lego's chains also the accuracy of each labelled variable, accuracy_at_1 and so on; or the most probable "
        "completions of a text.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a model folder, or a hub name")
    parser.add_argument("--data", metavar="DIR", help="a prepared data set, e.g. DATA/validation")
    parser.add_argument(
        "--samples", type=int, metavar="N", help="at most so many samples, spread evenly (default: all)"
    )
    parser.add_argument("--micro-batch", type=int, default=16, metavar="N", help="samples at a time (default: 16)")
    parser.add_argument("--fill", metavar="TEXT", help='a text with one or more [MASK], e.g. "Paris is the [MASK]."')
    parser.add_argument("--top", type=int, default=5, metavar="K", help="completions for each [MASK] (default: 5)")
    parser.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    if (arguments.data is None) == (arguments.fill is None):
        raise UserError("longmix evaluate takes --data DIR or --fill TEXT, one of the two")
    for name in ("samples", "micro_batch", "top"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}, but must be at least 1")
    from transformers.utils import logging as transformers_logging

    from .commands import evaluate

    transformers_logging.disable_progress_bar()
    if arguments.fill is not None:
        print(evaluate.fill(arguments.checkpoint, arguments.fill, arguments.top))
    else:
        print(evaluate.figures(arguments.checkpoint, arguments.data, arguments.samples, arguments.micro_batch))
    return 0


def _add_export(verbs) -> None:
    parser = verbs.add_parser(
        "export",
        help="a plain Hugging Face folder from a run's checkpoint, if wanted with the model's code",
        description="Copy the model of a checkpoint of a run, or a model folder: config.json, model.safetensors, "
        "tokenizer; with --self-contained the model's code, too.",
    )
    parser.add_argument("source", metavar="RUN | MODEL", help="the run folder (run.dir), or a model folder")
    parser.add_argument("--step", type=int, metavar="N", help="the checkpoint of step N (default: the newest)")
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="add the model's code, so that transformers loads it without longmix (trust_remote_code=True)",
    )
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from .export.publish import export_model

    print(f"wrote {export_model(arguments.source, arguments.step, arguments.output, arguments.self_contained)}")
    return 0


def _add_requeue(verbs) -> None:
    parser = verbs.add_parser(
        "requeue",
        help="whether a job that has ended is worth starting again (for the scripts in slurm/)",
        description="Note in the run folder that a start of a job has ended. Exit code 0: start it again; 1: it would "
        "end like this again, for it failed twice at one step, or ended five times without a new checkpoint.",
    )
    parser.add_argument("settings", nargs="+", metavar="CONFIG | KEY=VALUE", help="as longmix train was given them")
    parser.add_argument("--job", required=True, metavar="ID", help="the job; what other jobs did does not count")
    parser.add_argument(
        "--code",
        type=int,
        required=True,
        choices=(launch.OURS, launch.INTERRUPTED),
        help="the exit code that it ended with",
    )
    parser.add_argument(
        "--sweep", action="store_true", help="the job was a longmix sweep with these arguments, not a longmix train"
    )
    _add_sweep_options(parser.add_argument_group("as longmix sweep was given them"))
    parser.set_defaults(run=_requeue)


def _requeue(arguments: argparse.Namespace) -> int:
    from .runs.requeue import reason_against
    from .settings import configuration as configurations

    if arguments.sweep:
        from .runs.sweep import jobs_of

        runs = [job.folder for job in jobs_of(arguments)]
    else:
        runs = [configurations.load(*_split(arguments.settings), model_later=True).run.dir]
    # A share without runs ends at once.
    reason = reason_against(runs, arguments.job, arguments.code) if runs else None
    if reason is None:
        return 0
    print(f"longmix: not started again: {reason}", flush=True)
    return launch.OURS


def _doctor(arguments: argparse.Namespace) -> int:
    from .commands.doctor import report

    text, is_sound = report()
    print(text)
    return 0 if is_sound else launch.OURS
