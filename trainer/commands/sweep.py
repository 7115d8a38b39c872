"""The verb `sweep`: many runs, each in a process of its own."""

import argparse

from ..settings.exit_codes import EXPLANATION
from ..settings.mistakes import say_loading
from .arguments import add_settings, add_sweep_options


def add_parser(verbs) -> None:
    """Add `sweep` to the command line."""
    parser = verbs.add_parser(
        "sweep",
        help="train several run files with several seeds each, one process for each device",
        description="Train every run file with every seed; the runs are run.dir/seed-N, and what they say goes to "
        "run.dir/seed-N.log. Finished runs stay, interrupted ones go on, and the same command runs failed ones again. "
        "longmix report makes the tables.",
        epilog="Example: longmix sweep configs/papers/converter_listops.yaml configs/papers/wavspa_listops.yaml "
        "--seeds 5 optim.max_steps=2000. " + EXPLANATION,
    )
    add_settings(parser, "run files, each an experiment of its own with its own run.dir, and changes for all of them")
    add_sweep_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    say_loading("sweep")
    from ..many_runs.sweep import run_command

    return run_command(arguments)
