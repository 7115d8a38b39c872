"""What a person sees of a run: lines before its first figures, and on a terminal a bar that other lines leave whole."""

import contextlib
import fcntl
import functools
import os
import pty
import re
import struct
import termios
import threading

import pytest
from transformers.utils import logging as transformers_logging

from longmix.trainer.checkpoints import console
from longmix.trainer.settings import mistakes

WIDTH = 100
BAR = re.compile(r"train +(\d+)%\|.*\| (\d+)/(\d+) \[\d\d:\d\d<(\d\d:\d\d|\?)(, loss [\d.]+(, tokens/s [\d,]+)?)?\]")


class Terminal:
    """A terminal, of WIDTH columns at first: `lines` is what a person sees on it, `written` all that came."""

    def __init__(self):
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.resize(40, WIDTH)
        self._read = b""
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def resize(self, rows, columns):
        fcntl.ioctl(self.stream, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _follow(self):
        # It ends with an error once the other side is closed.
        with contextlib.suppress(OSError):
            while part := os.read(self._ours, 4096):
                self._read += part

    def __enter__(self):
        """It is standard error from here on."""
        self._redirected = contextlib.redirect_stderr(self.stream)
        self._redirected.__enter__()

    def __exit__(self, *error):
        self._redirected.__exit__(*error)
        self.stream.close()
        self._reader.join()
        os.close(self._ours)

    @property
    def written(self):
        return self._read.decode()

    @property
    def lines(self):
        lines, column = [""], 0
        for letter in self.written:
            if letter == "\n":
                lines.append("")
                column = 0
            elif letter == "\r":
                column = 0
            else:
                assert letter.isprintable(), "no more than text and carriage returns is understood"
                line = lines[-1].ljust(column)
                lines[-1], column = line[:column] + letter + line[column + 1 :], column + 1
        return [line.rstrip() for line in lines]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    # As the command does.
    transformers_logging.disable_progress_bar()
    yield Terminal()
    transformers_logging.enable_progress_bar()


def test_lines_between_start_and_the_first_evaluation(train, tmp_path, capsys):
    train(tmp_path / "run")
    before = capsys.readouterr().err.partition("eval 0/")[0]
    assert "training samples; building" in before and "parameters; dry run of one step" in before


def test_a_run_on_a_terminal_has_a_bar_and_lines_above_it(train, tmp_path, terminal):
    with terminal:
        train(tmp_path / "run", **{"optim.max_steps": 4, "log.every_steps": 2, "eval.every_steps": 2})
    lines = terminal.lines
    bars = [line for line in lines if "%|" in line]
    # One, as it ended, below what was said while it moved; and a bar and a line never share one.
    assert len(bars) == 1 and len(bars[0]) < WIDTH
    found = BAR.fullmatch(bars[0])
    assert found[1] == "100" and found[2] == found[3] == "4" and found[5]
    above, below = lines[: lines.index(bars[0])], lines[lines.index(bars[0]) + 1 :]
    assert [line.split("  ")[0] for line in above if line.startswith("eval")] == ["eval 0/4", "eval 2/4", "eval 4/4"]
    assert not any(line.startswith("train ") for line in above)
    assert below[0].startswith("finished: ") and below[-1] == ""
    assert set(re.findall(r"\| (\d)/4 \[", terminal.written)) >= {"0", "2", "4"}
    assert re.search(r"\reval +50%\|", terminal.written)


def test_lines_from_anywhere_leave_the_bar_whole(terminal):
    shown = console.Console(10, 20)
    with terminal:
        shown.begin()
        shown.note_step(12)
        shown.show("train", 12, {"loss": 1.5, "tokens_per_second": 1234.0, "lr": 0.1})
        mistakes.say("from elsewhere")
        other = threading.Thread(target=shown.say, args=("from a thread",))
        other.start()
        other.join()
        shown.finish()
        mistakes.say("the end")
    *said, bar, end, nothing = terminal.lines
    assert (said, end, nothing) == (["from elsewhere", "from a thread"], "the end", "")
    assert BAR.fullmatch(bar) and "12/20" in bar and bar.endswith(", loss 1.5000, tokens/s 1,234]")


@pytest.mark.parametrize("rows, columns", [(0, 0), (0, WIDTH), (40, 0)])
def test_a_terminal_that_knows_no_size_has_a_bar(terminal, rows, columns):
    terminal.resize(rows, columns)
    shown = console.Console(0, 20)
    with terminal:
        shown.begin()
        shown.note_step(20)
        shown.finish()
    bar, nothing = terminal.lines
    assert nothing == "" and BAR.fullmatch(bar) and 60 < len(bar) <= (columns or 80)


@pytest.mark.parametrize("reason", ["a terminal that rewrites no line", "TQDM_DISABLE=1"])
def test_a_terminal_without_a_bar_gets_a_line_for_each_record(terminal, capsys, monkeypatch, reason):
    def record():
        shown = console.Console(0, 20)
        shown.begin()
        shown.note_step(20)
        shown.show("train", 20, {"loss": 1.5, "tokens_per_second": 1234.0, "lr": 0.1})
        shown.show("eval", 20, {"loss": 1.25, "items": 3})
        shown.say("the end")
        shown.finish()

    if reason == "TQDM_DISABLE=1":  # read when tqdm is imported
        monkeypatch.setattr(console, "_Bar", functools.partial(console._Bar, disable=True))
    else:
        monkeypatch.setenv("TERM", "dumb")
    with terminal:
        record()
    record()
    expected = "train 20/20  loss 1.5000  tokens/s 1,234  lr 1.00e-01  left 0:00:00\neval 20/20  loss 1.2500\nthe end\n"
    assert (terminal.written.replace("\r\n", "\n"), capsys.readouterr().err) == (expected, expected)
