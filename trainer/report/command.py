"""`longmix report`: run folders into tables, plots and a page."""

import argparse
import sys
from pathlib import Path

from longmix.data_prep.errors import refused
from longmix.data_prep.options import output_folder
from longmix.data_prep.state_files import read_json
from longmix.kernels.common.safe_files import read_input

DESCRIPTION = """Tabulate finished runs: mean and 95 % interval over seeds, beside the figures of the papers.

Runs that differ in nothing but their seed are one row. The figures are those of the test split, with the checkpoint
that the validation split has chosen; runs without data.test give their validation figures, and say so. What is not
finished, or has failed, is named and left out. Beside the losses of language models stands what unigrams and bigrams
reach at the same tokens, counted on at most 4 million tokens of the training data, where these are at hand.

DIR gets report.md, report.csv, report.json, report.html (plots inside, a table that sorts by a click, no network), and
with matplotlib the plots as SVG files."""

EPILOG = """examples:
  longmix report runs/listops runs/image --output results
  longmix report runs --output docs/results/adding"""

_LARGEST_FILE = 2**28
# How the files of a report have always begun.
_FIRST_WORDS = {".md": "# Results\n", ".json": "{", ".csv": "task,", ".html": "<!DOCTYPE html>", ".svg": "<?xml"}


def add_report_parser(verbs) -> None:
    """Add `report` to the command line; its arguments go to `run`."""
    parser = verbs.add_parser(
        "report",
        help="tables, plots and a page of finished runs, beside the papers' figures",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--output", type=output_folder, required=True, metavar="DIR", help="folder of the report")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0; raises UserError for the user's mistakes."""
    from longmix.data_prep.errors import printable
    from longmix.data_prep.files import make_folder
    from longmix.data_prep.made_files import write_files

    from ..many_runs.read import find_runs
    from . import plots, tables
    from .counted import count
    from .page import page
    from .summary import summarize

    report = summarize(find_runs(arguments.runs))
    note = None if plots.has_matplotlib() else plots.HOW_TO_GET_PLOTS
    reached = count(report)
    drawn = {} if note is not None else plots.draw(report, reached)
    output = Path(arguments.output)
    pictures = {key: [(shown, f"{name}.svg") for shown, name, _ in each] for key, each in drawn.items()}
    text = tables.markdown(report, pictures, note, reached)
    files = {
        "report.md": text,
        "report.csv": tables.as_csv(report),
        "report.json": tables.as_json(report),
        "report.html": page(report, drawn, note, reached),
        **{f"{name}.svg": svg for each in drawn.values() for _, name, svg in each},
    }
    try:
        make_folder(output)
        write_files(output, files, _is_earlier)
    except OSError as error:
        raise refused(f"--output {output} cannot be written", error) from None
    print(text)
    for folder, reason in report.left_out:
        print(printable(f"longmix report: left out: {folder}: {reason}"), file=sys.stderr)
    print(printable(f"longmix report: wrote {', '.join(files)} to {output}"), file=sys.stderr)
    return 0


def _is_earlier(path: Path) -> bool:
    """Whether a file is of a report of an earlier version, which kept no record of its files."""
    try:
        report = read_json(path.parent / "report.json", allows_nan=True)
        is_report = isinstance(report, dict) and set(report) == {"confidence", "rows", "left_out"}
        begins = read_input(path, _LARGEST_FILE).decode().startswith(_FIRST_WORDS.get(path.suffix, ""))
    except (OSError, ValueError):
        return False
    return is_report and begins
