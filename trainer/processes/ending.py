"""How every command ends: one line and an exit code for mistakes, faults and signals, a traceback for bugs alone."""

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from longmix.data_prep.errors import MachineFault, Unfinished, UserError, in_one_line

from ..settings.exit_codes import INTERRUPTED, OURS, USER_MISTAKE
from ..settings.mistakes import say, tell
from . import signals
from .launch_environment import tells


def code_of(told: UserError | MachineFault) -> int:
    """The exit code of what ends a command."""
    return USER_MISTAKE if isinstance(told, UserError) else OURS


def exit_code(work: Callable[[], int], command: str = "longmix", is_shared: bool = False) -> int:
    """The exit code of a command's `work`; what else than its own end ends it is told in a line.

    Args:
        is_shared: every rank of a run does this work, and finds the same mistakes: one tells them.

    Raises:
        Exception: a bug.
    """
    try:
        code = work()
        if sys.stdout is not None:
            # What a command has printed is part of its work, which fails if it cannot be written.
            with _naming_output():
                sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _interrupted(command)
    except Unfinished as error:
        say(f"{command}: {error}")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing left to say, and nowhere to say it.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return OURS
    except Exception as error:
        told = in_one_line(error)
        if told is None and signals.is_interrupted():
            # An extension module whose import is interrupted says that it failed.
            return _interrupted(command)
        if told is None:
            raise
        if not is_shared or tells(told):
            tell(told, command)
        return code_of(told)


def _interrupted(command: str) -> int:
    say(f"{command}: interrupted; the same command goes on from here")
    return INTERRUPTED


class _StandardOutput(io.TextIOWrapper):
    """Standard output that says so where the system refuses it: its own error names no file."""

    def write(self, text: str) -> int:
        with _naming_output():
            return super().write(text)

    def flush(self) -> None:
        with _naming_output():
            super().flush()


@contextlib.contextmanager
def _naming_output() -> Iterator[None]:
    """Within it an error of the system, but for a reader that has gone, is a fault of standard output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # What it still holds is not tried again at the end.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise MachineFault(f"standard output cannot be written: {error.strerror}") from None


def leave(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main`, which a signal interrupts, and leave without the interpreter's own end.

    torch's threads do not always survive that. A thread of gloo may be about to give back the tensor of the last
    exchange, for which it needs the interpreter: once that is ending, the thread is made to leave through code that
    cannot be left, and a finished run dies by SIGABRT ("terminate called without an active exception"; seen in 4 of 120
    runs on busy cores).
    """
    signals.interrupt()
    if isinstance(sys.stdout, io.TextIOWrapper):
        line_buffering, write_through = sys.stdout.line_buffering, sys.stdout.write_through
        encoding = sys.stdout.encoding
        # Names of files need not be UTF-8.
        sys.stdout = _StandardOutput(
            sys.stdout.detach(),
            encoding,
            "backslashreplace",
            line_buffering=line_buffering,
            write_through=write_through,
        )
    try:
        code = main()
    except SystemExit as end:
        # argparse: 0 after --help, 2 after a mistake.
        code = end.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        import traceback

        traceback.print_exc()
        code = OURS
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)
