"""The log of a run: metrics.jsonl, TensorBoard, and a progress line."""

import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import refused
from longmix.data_prep.files import write_text
from longmix.data_prep.state_files import parse
from longmix.kernels.common.safe_files import open_to_append, open_to_change, open_to_read

from ..settings import mistakes
from ..settings.forecast_figures import is_forecast, verdict


class RunLog:
    """Writes on rank 0; on the others every method does nothing.

    Args:
        run: the run folder.
        is_first: whether this is rank 0.
        first_step: the step that the run resumes from; records that the coming steps make again are dropped.
        evaluation_due: the run makes the evaluation of `first_step` again: its record is dropped, too.
    """

    def __init__(
        self,
        run: Path,
        is_first: bool,
        first_step: int,
        last_step: int,
        tensorboard: bool,
        evaluation_due: bool = False,
    ):
        self._active = is_first
        self._writer = None
        if not is_first:
            return
        self._progress = _Progress(first_step, last_step)
        path = run / "metrics.jsonl"
        if first_step > 0 and not path.exists():
            self.say(f"warning: {path} is missing: the records up to step {first_step} are lost, and the run goes on")
        try:
            kept, damaged = _sorted_out(path, first_step, evaluation_due)
            aside = _set_aside(path, damaged) if first_step > 0 and damaged else None
            write_text(path, "".join(kept))
            self._lines = _Lines(path)
        except OSError as error:
            raise refused(f"{path} cannot be written", error) from None
        if aside is not None:
            lines = f"{len(damaged)} damaged line{'s' * (len(damaged) > 1)}"
            self.say(f"warning: {path} had {lines}, now in {aside.name}: those records are lost, and the run goes on")
        self._refused = False
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=first_step + 1)
            # TensorBoard dates every point: a clock that is set back must not turn its time axis around.
            self._began = time.time() - time.monotonic()

    def record(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, and the numbers to TensorBoard; not-finite numbers become null."""
        if not self._active:
            return
        values = {name: None if _is_bad(value) else value for name, value in figures.items()}
        try:
            self._lines.add(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._refused = False
        except OSError as error:
            if not self._refused:
                self.say(f"metrics.jsonl refuses: {error.strerror}; its lines are held back until it takes them")
            self._refused = True
        with self._drawing():
            for name, value in values.items():
                if self._writer is None:
                    break
                if isinstance(value, int | float) and name != "items":  # the same at every evaluation
                    self._writer.add_scalar(f"{kind}/{name}", value, step, self._began + time.monotonic())
        self._progress.show(kind, step, figures)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """TensorBoard's files are a copy: where they cannot be written, the run goes on without."""
        try:
            yield
        except OSError as error:
            self._writer = None
            self.say(f"TensorBoard's files refuse: {error.strerror}; nothing more is drawn until the next start")

    def flush(self) -> None:
        """Onto the disk: called before a checkpoint is renamed, so that it never knows more than metrics.jsonl.

        Raises:
            OSError: the disk refuses; the lines are held back, and the next call tries again.
        """
        if self._active:
            self._lines.flush()
            with self._drawing():
                if self._writer is not None:
                    self._writer.flush()

    def say(self, text: str) -> None:
        if self._active:
            self._progress.say(text)

    def close(self) -> None:
        if self._active:
            self._lines.close()
            self._progress.finish()
            with self._drawing():
                if self._writer is not None:
                    self._writer.close()


# metrics.jsonl: the record that a resume relies on, so it outlives a disk that refuses or goes away for a while.


class _Lines:
    """Appends lines to a file; lines that the disk refuses are held back, and written in order once it takes them.

    Every line since the last `flush` is held, so that it can be written again to a disk that has lost it.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = open_to_append(path)
        self._flushed = self._file.tell()
        self._held: list[bytes] = []
        self._written = 0  # of those held

    def add(self, line: str) -> None:
        """Raises OSError if the disk refuses; the line is written later."""
        self._held.append(line.encode())
        self._write()

    def flush(self) -> None:
        """Raises OSError if the disk refuses, or the file has gone."""
        if self._file is not None and not self._is_the_same():
            self._let_go()
        self._write()
        try:
            os.fsync(self._file.fileno())
        except OSError:
            self._let_go()
            raise
        self._flushed += sum(map(len, self._held))
        self._held, self._written = [], 0

    def close(self) -> None:
        # Lines that are still held back are newer than every checkpoint: the resumed run makes them again.
        self._let_go()

    def _is_the_same(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = open_to_change(self._path)
                size = self._file.seek(0, os.SEEK_END)
                self._flushed = min(size, self._flushed)
                self._file.truncate(self._flushed)
                self._file.seek(self._flushed)
            for line in self._held[self._written :]:
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
                self._written += 1
        except OSError:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Close the file; opened anew, it is cut back to what is certain."""
        file, self._file, self._written = self._file, None, 0
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _is_bad(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _sorted_out(path: Path, first_step: int, evaluation_due: bool) -> tuple[list[str], list[bytes]]:
    """The records to keep of a file, and the lines in it that are none.

    A run resumed from `first_step` makes the records of later steps and of the end again, at 0 all of them.
    """
    if not os.path.lexists(path):
        return [], []
    made_again = ("eval", "test") if evaluation_due else ("test",)
    kept, damaged = [], []
    with open_to_read(path) as file:
        lines = file.read().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line, allows_nan=True)
            is_before = record["step"] < first_step
            if is_before or (record["step"] == first_step > 0 and record["kind"] not in made_again):
                kept.append(line.decode() + "\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            # What no line break ends was cut short by a kill, after the checkpoint: it is made again.
            if line.strip() and number < len(lines):
                damaged.append(line)
    return kept, damaged


def _set_aside(path: Path, damaged: list[bytes]) -> Path:
    """Write damaged lines of a file to a new one beside it; its path."""
    numbers = itertools.count(1)
    while True:
        aside = path.with_name(f"{path.name}.damaged-{next(numbers)}")
        try:
            with open(aside, "xb") as file:
                file.writelines(line + b"\n" for line in damaged)
                file.flush()
                os.fsync(file.fileno())
            return aside
        except FileExistsError:
            continue


# The terminal: a person watches one line change; a log of Slurm, read later, has a line for each record.


class _Progress:
    """One live line on a terminal; one line per record elsewhere (a Slurm log)."""

    def __init__(self, first_step: int, last_step: int):
        self._first, self._last = first_step, last_step
        self._started = time.monotonic()
        self._live = sys.stderr.isatty()
        self._width = 0

    def show(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        shown = {name: value for name, value in figures.items() if name in _SHOWN and value is not None}
        if is_forecast(figures):
            shown.pop("loss", None)  # the MSE
        words = [
            f"{_SHOWN[name][0]} {'not finite' if _is_bad(value) else _SHOWN[name][1](value)}"
            for name, value in shown.items()
        ]
        line = f"{kind} {step}/{self._last}  " + "  ".join(words or ["nothing to predict: no figures"])
        if kind != "train":
            self.say(line)
            lost = verdict(figures) if step > 0 and is_forecast(figures) else None
            if lost is not None:
                self.say(f"{kind} {step}/{self._last}  {lost}")
            return
        done = step - self._first
        if done > 0:
            seconds = (time.monotonic() - self._started) / done * (self._last - step)
            line += f"  left {int(seconds // 3600)}:{int(seconds // 60) % 60:02d}:{int(seconds) % 60:02d}"
        if not self._live:
            mistakes.say(line)
            return
        mistakes.say(line.ljust(self._width), start="\r", end="")
        self._width = len(line)

    def say(self, text: str) -> None:
        start = "\r" if self._live and self._width else ""
        mistakes.say(text.ljust(self._width), start=start)
        self._width = 0

    def finish(self) -> None:
        if self._live and self._width:
            mistakes.say("")
            self._width = 0


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


_SHOWN = {
    "loss": ("loss", "{:.4f}".format),
    "perplexity": ("perplexity", "{:.1f}".format),
    "token_perplexity": ("perplexity per token", "{:.1f}".format),
    "word_perplexity": ("perplexity per word", "{:.1f}".format),
    "mse": ("MSE", "{:.4f}".format),
    "mae": ("MAE", "{:.4f}".format),
    "last_value_mse": ("last value: MSE", "{:.4f}".format),
    "last_value_mae": ("MAE", "{:.4f}".format),
    "seasonal_mse": ("last season: MSE", "{:.4f}".format),
    "seasonal_mae": ("MAE", "{:.4f}".format),
    "masked_accuracy": ("masked accuracy", _percent),
    "accuracy": ("accuracy", _percent),
    "matthews": ("Matthews", "{:.3f}".format),
    "pearson": ("Pearson", "{:.3f}".format),
    "lr": ("lr", "{:.2e}".format),
    "grad_norm": ("grad norm", "{:.2f}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
    "data_wait_fraction": ("data wait", _percent),
    "mfu": ("mfu", _percent),
}
