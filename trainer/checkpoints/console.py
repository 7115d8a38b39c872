"""What the console shows of a run: on a terminal a bar that moves, elsewhere (a Slurm log) a line for each record."""

import math
import os
import sys
import time
from typing import Any

from tqdm import tqdm

from ..settings import mistakes
from ..settings.forecast_figures import by_variable, is_forecast, table, verdict
from ..tables.figures import duration
from ..tables.writing import aligned

# Steps, time since the start and time left; behind them the loss and the tokens per second of the last record.
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_TRAINING = "train"
# Of a terminal that knows no size, as one that a program opens; at 0 rows or columns tqdm shows nothing.
_COLUMNS, _ROWS = 80, 24
_IN_THE_BAR = ("loss", "tokens_per_second")


class Console:
    """Lines of a run that is at `first_step` and ends at `last_step`, and on a terminal its bar."""

    def __init__(self, first_step: int, last_step: int):
        self._first, self._last = first_step, last_step
        self._started = time.monotonic()
        self._bar: _Bar | None = None

    def begin(self) -> None:
        """The steps begin. A terminal gets its bar, unless it cannot rewrite a line."""
        if self._first < self._last and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            columns, rows = os.get_terminal_size(sys.stderr.fileno())
            sized = columns > 0 and rows > 0
            bar = _Bar(
                desc=_TRAINING,
                total=self._last,
                initial=self._first,
                file=sys.stderr,
                bar_format=_FORMAT,
                dynamic_ncols=sized,
                ncols=None if sized else columns or _COLUMNS,
                nrows=None if sized else _ROWS,
                mininterval=0.2,
                miniters=1,
                smoothing=0,  # by the time of all steps, evaluations among them
            )
            if not bar.disable:  # as TQDM_DISABLE=1 has it
                self._bar = bar
                mistakes.aside = lambda: _Bar.external_write_mode(file=sys.stderr)

    def note_step(self, step: int) -> None:
        """A step is done."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def note_phase(self, name: str | None) -> None:
        """What the steps wait for, "eval" say; None: for nothing more."""
        if self._bar is not None:
            self._bar.set_description_str((name or _TRAINING).ljust(len(_TRAINING)))

    def show(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Show a record: a line, or of training, where there is a bar, what the bar says."""
        shown = {name: value for name, value in figures.items() if name in _SHOWN and value is not None}
        if is_forecast(figures):
            shown.pop("loss", None)  # the MSE
        words = {
            name: f"{_SHOWN[name][0]} {'not finite' if is_bad(value) else _SHOWN[name][1](value)}"
            for name, value in shown.items()
        }
        if kind == "train" and self._bar is not None:
            self._bar.set_postfix_str(", ".join(words[name] for name in _IN_THE_BAR if name in words))
            return
        line = f"{kind} {step}/{self._last}  " + "  ".join(words.values() or ["nothing to predict: no figures"])
        done = step - self._first
        if kind == "train" and done > 0:
            seconds = (time.monotonic() - self._started) / done * (self._last - step)
            line += f"  left {duration(seconds)}"
        self.say(line)
        if kind == "test" and by_variable(figures):
            header, rows = table(figures)
            for row in aligned(header, rows, right=range(1, len(header))):
                self.say(row)
        lost = verdict(figures) if kind != "train" and step > 0 and is_forecast(figures) else None
        if lost is not None:
            self.say(f"{kind} {step}/{self._last}  {lost}")

    def say(self, text: str) -> None:
        """A line, above the bar if there is one."""
        mistakes.say(text)

    def finish(self) -> None:
        """Leave the bar as it stands; what is said from here on stands below it."""
        if self._bar is not None:
            mistakes.aside = mistakes.NOTHING_ASIDE
            self._bar.close()
            self._bar = None


class _Bar(tqdm):
    """tqdm without the thread that it watches its bars with: ranks fork, and a lock held by a thread stays held."""

    monitor_interval = 0


def is_bad(value: Any) -> bool:
    """Whether a figure is a number that is not finite."""
    return isinstance(value, float) and not math.isfinite(value)


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
    "gpu_memory_gib": ("GPU memory", "{:.1f} GiB".format),
}
