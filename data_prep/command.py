"""`longmix prepare`: the kinds of data that it makes."""

import argparse
import pkgutil
from typing import Any

from longmix.data_prep.errors import printable
from longmix.data_prep.options import output_folder

# Each kind of data: the function that gives its parser a description and options, and its line of the list of kinds.
# The function is imported when its kind is asked for: `longmix train --help` needs none of their libraries.
KINDS = {
    "text": ("text.command:add_arguments", "text into a tokenizer and packed data sets for masked language modelling"),
    "probe": ("tasks.probe:add_arguments", "synthetic tasks: copy what stands at a distance, or look it up"),
    "adding": (
        "tasks.long_range:add_adding_arguments",
        "the adding problem: the sum of two marked numbers of a long sequence",
    ),
    "dna": ("tasks.dna:add_arguments", "classify DNA sequences by their bases"),
    "documents": ("tasks.document_classes:add_arguments", "classify long documents by their characters"),
    "forecasting": ("tasks.forecasting:add_arguments", "time series (CSV with dates) for forecasting"),
    "image": (
        "tasks.images.image:add_arguments",
        "Long Range Arena's Image task: gray pixels as tokens, with noise where wanted",
    ),
    "lego": (
        "tasks.lego:add_arguments",
        "chains of reasoning: the signs of variables that are given by those of others",
    ),
    "listops": ("tasks.listops:add_arguments", "Long Range Arena: the value of nested operations on lists of digits"),
    "patches": (
        "tasks.images.patches:add_arguments",
        "images as patches of real values, with indices or 2-D coordinates as positions",
    ),
    "pathfinder": (
        "tasks.images.pathfinder:add_arguments",
        "Long Range Arena's Pathfinder: are two discs joined by a path?",
    ),
    "points": (
        "tasks.points:add_arguments",
        "3-D points with a number to predict: from .npz files, or generated clusters and their energy",
    ),
    "retrieval": (
        "tasks.retrieval:add_arguments",
        "Long Range Arena's Retrieval: classify pairs of documents by their bytes",
    ),
    "temporal-order": (
        "tasks.long_range:add_temporal_order_arguments",
        "temporal order: which two signals stand in a long sequence, and in which order",
    ),
    "text-bytes": ("tasks.text_bytes:add_arguments", "Long Range Arena's Text: classify reviews by their bytes"),
}


def add_prepare_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb `prepare` to what `ArgumentParser.add_subparsers` returned; returns its parser.

    `arguments.run` of the parsed arguments is the function that does the work and returns the exit code.
    """
    prepare = subparsers.add_parser("prepare", help="make data sets", description="Make data sets.")
    kinds = prepare.add_subparsers(
        title="kinds of data", dest="kind", required=True, metavar="KIND", action=_KindsOfData
    )
    for name, (_, text) in KINDS.items():
        kinds.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    return prepare


class _KindsOfData(argparse._SubParsersAction):
    """The parsers of the kinds, each without options until its kind is asked for.

    A kind's function adds what is its own to its parser, and sets the default `make`: a function of the parsed
    arguments that makes the data set and returns the lines that tell what it holds. It raises `UserError`.
    """

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *option: str):
        kind = self.choices[values[0]]
        if kind.get_default("run") is None:
            kind.set_defaults(run=_run)
            kind.add_argument(
                "--output",
                type=output_folder,
                required=True,
                metavar="DIR",
                help="folder to make; empty, new, or of the same command",
            )
            pkgutil.resolve_name(f"longmix.data_prep.{KINDS[values[0]][0]}")(kind)
        super().__call__(parser, namespace, values, *option)


def _run(arguments: argparse.Namespace) -> int:
    print("\n".join(map(printable, arguments.make(arguments))))
    return 0
