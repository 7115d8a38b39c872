"""The verb `plan`: what a run would take on GPUs that are not here."""

import argparse
import re

from longmix.data_prep.errors import UserError, printable_lines

from ..models.field_check import field_mistakes, quick_field_mistakes
from ..processes.cards import CARDS, Card, card_named
from ..samples.planned_data import UNSET_DATA, planned_data
from ..settings import reading
from ..settings.mistakes import say_loading
from .arguments import add_settings, split


def add_parser(verbs) -> None:
    """Add `plan` to the command line."""
    parser = verbs.add_parser(
        "plan",
        help="memory, time and days of a run on GPUs that are not here",
        description="Count what a run would keep in the memory of each GPU at every stage of ZeRO, the largest "
        "micro-batch that fits, and what its passes move and compute; and tell from the GPUs' data sheets what a step "
        "takes, and the run. Nothing is computed, and no GPU is needed.",
        epilog="Example: longmix plan configs/pretrain_paramixer.yaml model.vocab_size=32000 --sequence-length 8192 "
        "--gpus 8xA100-80 --nodes 4",
    )
    add_settings(parser, "as for longmix train")
    names = ", ".join(card.name for card in CARDS)
    parser.add_argument("--gpus", required=True, metavar="NxNAME", help=f"GPUs of a node, e.g. 8xA100-80; of {names}")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes (default: 1)")
    parser.add_argument(
        "--network", type=float, default=200.0, metavar="GBIT", help="Gbit/s between two nodes (default: 200)"
    )
    parser.add_argument(
        "--sequence-length", type=int, metavar="N", help="tokens of a sample, where the data are not here"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    gpus, card = _gpus(arguments.gpus)
    for name, value in (("--nodes", arguments.nodes), ("--sequence-length", arguments.sequence_length)):
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}, but must be at least 1")
    if not arguments.network > 0:
        raise UserError(f"--network is {arguments.network:g}, but must be a positive number of Gbit/s")
    paths, overrides = split(arguments.settings)
    # Recipes name neither a run folder nor data.
    unset = {"run.dir": "planned", "data.train": UNSET_DATA}
    planned_data(reading.load(paths, overrides, quick_field_mistakes, unset), arguments.sequence_length)
    say_loading("planning")
    from .planning import Cluster, report

    cluster = Cluster(card, gpus, arguments.nodes, arguments.network)
    configuration = reading.load(paths, overrides, field_mistakes, unset)
    print(printable_lines(report(configuration, cluster, arguments.sequence_length)))
    return 0


def _gpus(text: str) -> tuple[int, Card]:
    """`8xA100-80` -> (8, that card)."""
    found = re.fullmatch(r"(?:([1-9]\d{0,2})x)?(\S+)", text)
    card = card_named(found[2]) if found else None
    if card is None:
        names = ", ".join(one.name for one in CARDS)
        raise UserError(f"--gpus is {text!r}; needed: a number and a card, such as 8xA100-80; known are {names}")
    return int(found[1] or 1), card
