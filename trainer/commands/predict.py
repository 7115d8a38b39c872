"""The verb `predict`: answers of a model to new inputs, as a table."""

import argparse
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import FILE_NAME

from ..settings.mistakes import say_loading

DESCRIPTION = """Answer new inputs with a model, and write the answers as TSV, CSV, JSON lines or Parquet, by the
suffix of --output. The rows have the order of the input; `row` counts them from 0, and --keep puts columns of the input
beside its answers.

What is answered is what the model was trained for: a class with the probability of each, a value, the label of each
token, the pieces in place of [MASK]; --embeddings gives a vector for each text. A command that was killed goes on from
its last finished part, and its output has the same bytes."""

EPILOG = """examples:
  longmix predict runs/reviews/custom/seed-0 --data new.csv --output answers.tsv
  longmix predict runs/reviews/custom/seed-0 --data new.csv --keep id text --output answers.csv
  longmix predict runs/articles --data sentences.txt --output filled.jsonl
  longmix predict runs/articles --data sentences.txt --embeddings --output vectors.parquet"""


def add_parser(verbs) -> None:
    """Add `predict` to the command line."""
    parser = verbs.add_parser(
        "predict",
        help="answers of a model to new inputs: classes, values, token labels, filled masks, embeddings",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a model folder, a run folder, a checkpoint, or a hub name")
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE|FOLDER|hub:NAME",
        help="new inputs: .tsv, .csv, .jsonl, .parquet, .txt (a text a line), the folder of a prepared split, or "
        "hub:NAME[@CONFIGURATION][:SPLIT]",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="the file to write: .tsv, .csv, .jsonl or .parquet"
    )
    add_table_options(parser)
    parser.add_argument(
        "--keep",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="columns of the input, as texts, between `row` and the answers; given_NAME where an answer is called NAME",
    )
    parser.add_argument("--embeddings", action="store_true", help="the mean of each text's hidden states instead")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="inputs at a time (32)")
    parser.add_argument("--part-rows", type=int, default=10_000, metavar="N", help="rows in a part (10000)")
    parser.set_defaults(run=run)


def add_table_options(parser) -> None:
    """Add the options that say which columns of a table hold what, and how much of a text is read."""
    parser.add_argument(
        "--columns", nargs="+", metavar="NAME", help="the names of the columns of a file without a header, in order"
    )
    parser.add_argument(
        "--text-columns",
        nargs="+",
        metavar="NAME",
        help="the columns that hold the text (those of fine-tuning); from the second on they make the second text",
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="longest input in tokens (fine-tuning's)")


def run(arguments: argparse.Namespace) -> int:
    for name in ("batch_size", "part_rows", "max_length"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}, but must be at least 1")
    from ..finetune.records import file_table
    from ..prediction.output import check_output

    is_prepared = (Path(arguments.data) / FILE_NAME).is_file()
    named = [*(arguments.text_columns or []), *arguments.keep]
    table = None if is_prepared else file_table(arguments.data, arguments.columns, named)
    target = check_output(arguments.output)
    say_loading("predict")
    from ..prediction.session import run as run_session

    return run_session(arguments, table, target)
