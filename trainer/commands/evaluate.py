"""The verb `evaluate`: figures of a checkpoint, or completions of a text."""

import argparse
from pathlib import Path

from longmix.data_prep.errors import UserError, printable_lines
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.forecasting import KEEP, SPLIT

from ..settings.mistakes import say_loading
from .predict import add_table_options

_SERIES = "--data with a table of a series"  # and a model that forecasts


def add_parser(verbs) -> None:
    """Add `evaluate` to the command line."""
    parser = verbs.add_parser(
        "evaluate",
        help="loss and accuracy of a checkpoint on a data set, or completions of a text with [MASK]",
        description="Figures of a checkpoint (ours, or any of transformers) on a prepared data set, with fixed masks; "
        "of lego's chains also the accuracy of each labelled variable, accuracy_at_1 and so on; of a model that "
        "forecasts also on every window of a table; or the most probable completions of a text.",
    )
    parser.add_argument("checkpoint", metavar="MODEL", help="a model folder, a run folder, a checkpoint, or a hub name")
    parser.add_argument(
        "--data",
        metavar="DIR|FILE",
        help="a prepared data set, e.g. DATA/validation, or a labelled file for a model that was fine-tuned on texts, "
        "or later steps for one that forecasts: .tsv, .csv, .jsonl, .parquet or hub:NAME[@CONFIGURATION][:SPLIT]",
    )
    add_table_options(parser)
    parser.add_argument("--label-column", metavar="NAME", help="the column of the labels (that of fine-tuning)")
    parser.add_argument(
        "--samples", type=int, metavar="N", help="at most so many samples, spread evenly (default: all)"
    )
    parser.add_argument(
        "--gaps",
        choices=(SPLIT, KEEP),
        help="of a table of a series, where rows are missing or repeated by their dates: no window reaches over such a "
        "place (default), or windows do, as over nights without trade",
    )
    parser.add_argument("--micro-batch", type=int, default=16, metavar="N", help="samples at a time (default: 16)")
    parser.add_argument("--fill", metavar="TEXT", help='a text with one or more [MASK], e.g. "Paris is the [MASK]."')
    parser.add_argument("--top", type=int, default=5, metavar="K", help="completions for each [MASK] (default: 5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.data is None) == (arguments.fill is None):
        raise UserError("longmix evaluate takes --data DIR|FILE or --fill TEXT, one of the two")
    for name in ("samples", "micro_batch", "top", "max_length"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}, but must be at least 1")
    from ..finetune.records import file_table, open_table

    table = None
    is_labelled = arguments.data is not None and is_table(arguments.data)
    if not is_labelled:
        of_files = ("columns", "text_columns", "label_column", "max_length")
        _refuse_options(arguments, "--data with a labelled file", *of_files)
        _refuse_options(arguments, _SERIES, "gaps")
    else:
        named = [arguments.label_column] if arguments.label_column else []
        table = file_table(arguments.data, arguments.columns, [*(arguments.text_columns or ()), *named])
    if arguments.fill is None and not is_labelled:
        Manifest.load(arguments.data)  # is it there?
    say_loading("evaluate")
    from transformers.utils import logging as transformers_logging

    from . import checkpoint_figures

    transformers_logging.disable_progress_bar()
    if arguments.fill is not None:
        text = checkpoint_figures.fill(arguments.checkpoint, arguments.fill, arguments.top)
    elif is_labelled:
        table = table or open_table(arguments.data, arguments.columns)
        if checkpoint_figures.forecasts(arguments.checkpoint):
            _refuse_options(arguments, "texts", "text_columns", "label_column", "max_length")
            text = checkpoint_figures.figures_of_series(
                arguments.checkpoint, table, arguments.gaps == KEEP, arguments.samples, arguments.micro_batch
            )
        else:
            _refuse_options(arguments, _SERIES, "gaps")
            _refuse_options(arguments, "prepared data and series: of a labelled file all rows are evaluated", "samples")
            from ..prediction import scores

            text = scores.figures(
                arguments.checkpoint,
                table,
                arguments.text_columns,
                arguments.label_column,
                arguments.max_length,
                arguments.micro_batch,
            )
    else:
        text = checkpoint_figures.figures(
            arguments.checkpoint, arguments.data, arguments.samples, arguments.micro_batch
        )
    print(printable_lines(text))
    return 0


def is_table(data: str) -> bool:
    """Whether `data` is a file, or named like one, or a hub data set, and no folder of a prepared one."""
    from ..finetune.records import HUB, OPENERS, kind_of

    path = Path(data)
    return data.startswith(HUB) or path.is_file() or (kind_of(path) in OPENERS and not path.is_dir())


def _refuse_options(arguments: argparse.Namespace, what: str, *names: str) -> None:
    """Raise UserError for an option that would do nothing, as it is for `what`."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for {what}")
