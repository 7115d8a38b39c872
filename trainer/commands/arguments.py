"""Arguments that several verbs take: run files with changes of their keys, and the options of a sweep."""

import os

from longmix.data_prep.errors import UserError


def add_settings(parser, text: str) -> None:
    """Add run files and changes in one list, which `split` takes apart; `text` is their help."""
    parser.add_argument("settings", nargs="+", metavar="CONFIG | KEY=VALUE", help=text)


def split(settings: list[str]) -> tuple[list[str], list[str]]:
    """(run files, changes KEY=VALUE) of a list that holds both. Raises UserError if it names no run file."""
    overrides = [text for text in settings if "=" in text and not os.path.exists(text)]
    paths = [text for text in settings if text not in overrides]
    if not paths:
        raise UserError("name at least one run file before the changes; configs/ holds examples")
    return paths, overrides


def add_sweep_options(parser) -> None:
    """Add the options that say which runs a sweep has."""
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 for each run file (5)")
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs side by side (one for each GPU; 1 without); each sees one GPU"
    )
    parser.add_argument(
        "--share", metavar="I/N", help="only the I-th of N shares of the runs, from 0 (slurm/sweep.sh uses it)"
    )
