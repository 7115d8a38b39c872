"""The arguments of `./quickstart`. Run as a file by any Python, before anything is installed, it checks them."""

import argparse
import os
import re
import sys

HUB_PREFIX = "hub:"
FORMATS = ("text", "json-lines", "parquet", "csv", "tsv")  # as `longmix prepare text` has them; a test compares
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(:[^/]+)*")

DESCRIPTION = """\
From text to a fine-tuned checkpoint on this machine, once and for real: prepares a corpus, pre-trains a small
S3Attention encoder by masked language modelling under DeepSpeed, loads it back with from_pretrained, has it guess
hidden words, fine-tunes it on one classification task, and prints a table. Each stage prints the command that does it.

Without --text and --glue it needs no network beyond the package registry: the corpus is the documentation that every
Python carries, the task tells its sentences from ones with exchanged words. Given again, it goes on where it stands.
"""
EPILOG = """\
examples:
  ./quickstart
  ./quickstart --text articles.txt --output runs/articles
  ./quickstart --text wikimedia/wikipedia@20231101.en --glue nyu-mll/glue --output runs/wikipedia --minutes 20
"""


class Parser(argparse.ArgumentParser):
    """Mistakes in one line, exit code 2."""

    def error(self, message: str):
        # As longmix's `printable`, which cannot be imported yet: nothing that a terminal would obey.
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        print(f"quickstart: error: {shown} (see ./quickstart --help)", file=sys.stderr)
        sys.exit(2)


def parse(argv: list[str]) -> argparse.Namespace:
    """The checked arguments; `text` and `glue` are None, existing paths, or start with `hub:`."""
    parser = Parser(
        prog="./quickstart",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--text",
        metavar="FILE|FOLDER|HUB_ID",
        help="your own text: a text, .jsonl, .parquet, .csv or .tsv file, a folder of them, or a data set of the "
        "Hugging Face hub (owner/name, or hub:NAME[@CONFIGURATION][:SPLIT[:COLUMN]])",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        help="key or column that holds the text, but of plain text (default: text)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="what all files of --text are read as (default: each as its name says, or else its content)",
    )
    parser.add_argument(
        "--glue",
        metavar="FOLDER|HUB_ID",
        help="GLUE, as TSV or Parquet files or on the hub (nyu-mll/glue): CoLA if it is there, else the first task "
        "that is",
    )
    parser.add_argument(
        "--output",
        default="quickstart-run",
        metavar="FOLDER",
        help="where everything goes (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        metavar="M",
        help="the most time for training, of which a quarter is for fine-tuning: a slower machine makes fewer steps, "
        "and the table says so (default: %(default)g)",
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=64.0,
        metavar="MB",
        help="of a larger text only the first MB megabytes are taken (default: %(default)g)",
    )
    arguments = parser.parse_args(argv)
    for name in ("minutes", "megabytes"):
        value = getattr(arguments, name)
        if not 0 < value < float("inf"):
            parser.error(f"--{name} is {value:g}, but must be a positive number")
    for name in ("column", "format"):
        if getattr(arguments, name) is not None and arguments.text is None:
            parser.error(f"--{name} says how --text is read: give that, too")
    for name in ("text", "glue"):
        setattr(arguments, name, _place(parser, name, getattr(arguments, name)))
    if arguments.glue is not None and os.path.isfile(arguments.glue):
        parser.error(f"--glue {arguments.glue} is a file; name the folder that holds CoLA, SST-2, ...")
    if "://" in arguments.output:
        parser.error(f"--output {arguments.output} is a URL, but a folder of a file system is written: name one")
    if os.path.exists(arguments.output) and not os.path.isdir(arguments.output):
        parser.error(f"--output {arguments.output} is a file; name a folder")
    return arguments


def _place(parser: Parser, name: str, value: str | None) -> str | None:
    if value is None or os.path.exists(value) or value.startswith(HUB_PREFIX):
        return value
    if HUB_ID.fullmatch(value):
        return HUB_PREFIX + value
    parser.error(f"--{name} {value}: no such file or folder, and not of the form owner/name, as ids of the hub are")
    raise AssertionError  # error() does not return


if __name__ == "__main__":
    parse(sys.argv[1:])
