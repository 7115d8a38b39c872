"""The command `longmix`: its verbs, and how every command ends.

0: finished. 2: the user's mistake, one line. 75: interrupted, the same command goes on. 1: the machine's fault, one
line; or a bug.
"""

import argparse
import sys

from longmix.data_prep.command import add_prepare_parser
from longmix.data_prep.errors import UserError, printable, show_printable_logs
from longmix.kernels.common.choice import asked_by_environment

from .commands import doctor, evaluate, export, inspect_order, plan, predict, push, requeue, sweep, train
from .finetune.command import add_finetune_parser
from .processes.ending import exit_code
from .report.command import add_report_parser
from .settings.exit_codes import EXPLANATION, USER_MISTAKE

# Each adds its verb to the command, in the order of the help, with `arguments.run` as what does the work. Their modules
# import nothing heavy at the top: --help and mistakes in a run file are told without torch.
VERBS = (
    add_prepare_parser,
    train.add_parser,
    plan.add_parser,
    sweep.add_parser,
    add_report_parser,
    inspect_order.add_parser,
    add_finetune_parser,
    evaluate.add_parser,
    predict.add_parser,
    export.add_parser,
    push.add_parser,
    requeue.add_parser,
    doctor.add_parser,
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; `argv` without the program's name. Returns the exit code."""
    show_printable_logs()
    arguments = _parse(argv)
    return exit_code(lambda: _run(arguments), is_shared=getattr(arguments, "is_shared", False))


def _run(arguments: argparse.Namespace) -> int:
    try:
        asked_by_environment()  # before anything is read, and here alone: the operations ask when they are called
    except ValueError as error:
        raise UserError(str(error)) from None
    return arguments.run(arguments)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    for text in sys.argv[1:] if argv is None else argv:
        # Bytes that are no UTF-8 could be written to no file of ours, and hardly be told.
        if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
            encoding = sys.getfilesystemencoding()
            if encoding != "utf-8":
                parser.error(f"the argument {text!r} cannot be read as {encoding}: set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
            parser.error(f"the argument {text!r} is not valid UTF-8: rename the file or folder")
    arguments, rest = parser.parse_known_args(argv)
    if rest and hasattr(arguments, "settings") and not any(text.startswith("-") for text in rest):
        # argparse takes a list of positional arguments in one piece: changes may stand behind options, too.
        arguments.settings += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


class _Parser(argparse.ArgumentParser):
    """argparse's own errors in the same one line."""

    def error(self, message: str):
        print(f"longmix: error: {printable(message)} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USER_MISTAKE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="longmix",
        description="Pre-train and fine-tune sub-quadratic encoders: text -> shards -> DeepSpeed -> from_pretrained.",
        epilog=EXPLANATION,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for add_parser in VERBS:
        add_parser(verbs)
    return parser
