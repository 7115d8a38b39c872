"""The verb `doctor`: what a bug report needs."""

import argparse

from longmix.data_prep.errors import printable_lines

from ..settings.exit_codes import OURS
from ..settings.mistakes import say_loading


def add_parser(verbs) -> None:
    """Add `doctor` to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="what a bug report needs, and what is wrong here",
        description="Print versions, devices and whether this torch supports them, precisions, compilers and which "
        "kernels will run; on GPUs, compute something on each and prove all Triton kernels again, with their times; "
        "then what is wrong, with its remedy. Exit code 1 if something is.",
    )
    parser.add_argument(
        "--node",
        action="store_true",
        help="only a look of seconds at this node: its memory, products of matrices on each device and, where a "
        "launcher has started one of these on each node, a sum over all of them (slurm/ takes it after a failure)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    say_loading("doctor")
    if arguments.node:
        from ..processes.launch_environment import LaunchEnvironment
        from ..processes.node import look

        lines, is_sound = look(LaunchEnvironment.read())
        print(printable_lines("\n".join(lines)))
        return 0 if is_sound else OURS
    from .diagnosis import report

    text, is_sound = report()
    print(printable_lines(text))
    return 0 if is_sound else OURS
