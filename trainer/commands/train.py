"""The verb `train`: one run, on one process or several, or with --check the description of what it would be.

What takes long to import is imported once the run file is found to be sound.
"""

import argparse
import os
import sys
import time
import traceback

from longmix.data_prep.errors import UserError, in_one_line, printable_lines

from ..models.field_check import field_mistakes, quick_field_mistakes
from ..processes import launch
from ..processes.ending import code_of
from ..processes.launch_environment import LaunchEnvironment
from ..processes.signals import StopRequests
from ..settings import reading
from ..settings.configuration import RunConfiguration
from ..settings.exit_codes import EXPLANATION, FINISHED, OURS
from ..settings.mistakes import say, tell
from .arguments import add_settings, split


def add_parser(verbs) -> None:
    """Add `train` to the command line."""
    parser = verbs.add_parser(
        "train",
        help="train a model as a run file says; go on where its run folder stands",
        description="Train as one or several run files say. With a run folder that holds a checkpoint, go on from it.",
        epilog="Example: longmix train configs/pretrain_s3attention.yaml data.train=DATA/train "
        "data.eval=DATA/validation run.dir=runs/first optim.max_steps=2000. " + EXPLANATION,
    )
    add_settings(
        parser,
        "run files (YAML; a run folder means its config.yaml), merged in order, and changes such as optim.lr=3e-4",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="worker processes on this machine (default: one per GPU, 1 without)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="validate, count parameters, estimate time, memory and disk on this machine, warn of what is absurd, "
        "and leave without training",
    )
    parser.set_defaults(run=run, is_shared=True)


def run(arguments: argparse.Namespace) -> int:
    paths, overrides = split(arguments.settings)
    if arguments.processes is not None and arguments.processes < 1:
        raise UserError(f"--processes is {arguments.processes}, but must be at least 1")
    place = LaunchEnvironment.read()
    if arguments.check:
        _announce("checking", reading.load(paths, overrides, quick_field_mistakes), place, "torch")
        return _check(reading.load(paths, overrides, field_mistakes), place, arguments)
    launch.leave_with_launcher()
    # Noted from here on: what is imported and built next takes long, and the signal must not end it half-way.
    with StopRequests() as requests:
        configuration = reading.load(paths, overrides, quick_field_mistakes)
        engine = "Accelerate" if configuration.deepspeed is None else "DeepSpeed"
        _announce("training", configuration, place, f"torch and {engine}")
        processes = 1 if place.is_worker else arguments.processes or _devices()
        if processes == 1:
            return _train_as_rank(reading.load(paths, overrides, field_mistakes), requests)
        from ..samples.run_data import check_processes, open_data

        check_processes(configuration, processes)
        open_data(configuration)
        # From here on the workers are asked, and this process waits for them.
        requests.has_begun = True
        return launch.launch(["train", *arguments.settings], processes, requests)


def _announce(doing: str, configuration: RunConfiguration, place: LaunchEnvironment, libraries: str) -> None:
    """Say in one line what is being done, once for all processes, if loading what it needs is still to come."""
    is_told = place.launcher is not None or place.rank != 0
    if not is_told and "torch" not in sys.modules:
        say(f"longmix: {doing} {configuration.run.dir}: loading {libraries}")


def _devices() -> int:
    from ..processes.world import usable_gpus

    return max(1, usable_gpus())


def _check(configuration: RunConfiguration, place: LaunchEnvironment, arguments: argparse.Namespace) -> int:
    """Describe the run for its processes; of several workers (torchrun, srun) the first does it for all."""
    from .check import report
    from .proposal import Command

    if place.is_worker and place.rank != 0:
        return 0
    processes = place.size if place.is_worker else arguments.processes or _devices()
    paths, overrides = split(arguments.settings)
    own = Command(tuple(paths), tuple(overrides), arguments.processes)
    print(printable_lines(report(configuration, processes, own)))
    return 0


def _train_as_rank(configuration: RunConfiguration, requests: StopRequests) -> int:
    """Train as one rank. Ranks leave together; one that fails leaves at once, with its reason."""
    from transformers.utils import logging as transformers_logging

    from ..many_runs.ended import ending
    from ..processes import world as distributed
    from ..run import loop

    # A bar for each checkpoint that is written would cut through the progress line.
    transformers_logging.disable_progress_bar()
    world = distributed.join(configuration.run.hang_minutes)
    try:
        # By the first rank for all, and before anything is built.
        end = distributed.agree(world, lambda: ending(configuration) if world.is_first else None)
        if world.from_first(end) is None:
            code = loop.train(configuration, world, requests).code
        else:
            code = FINISHED
            if world.is_first:
                say(end)
    except (distributed.SharedMistake, distributed.SharedFault) as end:
        # Told before any rank leaves: what watches over them may end the others when the first has left.
        if world.is_first:
            tell(end)
        code = code_of(end)
    except Exception as error:
        code = _tell_alone(error, world)
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


def _tell_alone(error: Exception, world) -> int:
    """Tell why this rank alone ends; the exit code."""
    from ..processes import world as distributed

    told = in_one_line(error)
    if told is not None:
        # Others may find the same at the same moment.
        if distributed.speaks_first(world):
            tell(told)
        return code_of(told)
    if distributed.is_lost_rank(error):
        # The lost rank, or whoever started it, tells the reason first.
        time.sleep(1.0)
        say(f"longmix: rank {world.rank} ends, because another rank has gone")
        return OURS
    say(f"longmix: rank {world.rank} failed: {type(error).__name__}: {error}")
    traceback.print_exc()
    sys.stderr.flush()
    return OURS
