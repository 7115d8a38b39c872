"""The verb `requeue`: whether a job of a cluster is worth starting again."""

import argparse

from longmix.data_prep.errors import printable

from ..settings.exit_codes import INTERRUPTED, OURS
from .arguments import add_settings, add_sweep_options, split


def add_parser(verbs) -> None:
    """Add `requeue` to the command line."""
    parser = verbs.add_parser(
        "requeue",
        help="whether a job that has ended is worth starting again (for the scripts in slurm/)",
        description="Note in the run folder that a start of a job has ended. Exit code 0: start it again; 1: it would "
        "end like this again, for it failed twice at one step, or ended five times without a new checkpoint.",
    )
    add_settings(parser, "as longmix train was given them")
    parser.add_argument("--job", required=True, metavar="ID", help="the job; what other jobs did does not count")
    parser.add_argument(
        "--code", type=int, required=True, choices=(OURS, INTERRUPTED), help="the exit code that it ended with"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="the job was a longmix sweep with these arguments, not a longmix train"
    )
    add_sweep_options(parser.add_argument_group("as longmix sweep was given them"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..many_runs.requeue import reason_against

    if arguments.sweep:
        from ..many_runs.sweep import jobs_of

        runs = [job.folder for job in jobs_of(arguments)]
    else:
        from ..models.field_check import quick_field_mistakes
        from ..settings import reading

        runs = [reading.load(*split(arguments.settings), quick_field_mistakes).run.dir]
    # A share without runs ends at once.
    reason = reason_against(runs, arguments.job, arguments.code) if runs else None
    if reason is None:
        return 0
    print(printable(f"longmix: not started again: {reason}"), flush=True)
    return OURS
