"""The log of a run: metrics.jsonl, TensorBoard, Weights & Biases, and what the console shows."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import reason_of, refused
from longmix.data_prep.files import write_text
from longmix.data_prep.state_files import parse
from longmix.kernels.common.safe_files import open_to_append, open_to_change, open_to_read

from .console import Console, is_bad
from .wandb_log import WandbLog

# TensorBoard's tags, and their folder, of curves over the tokens that training has read.
BY_TOKENS = "by_tokens"
# The record of a model that was made: its kind, and the step that it is of. Earlier versions wrote none.
MODEL, OF_STEP = "model", "of_step"


class RunLog:
    """Writes on rank 0; on the others every method does nothing.

    Args:
        run: the run folder.
        is_first: whether this is rank 0.
        first_step: the step that the run resumes from; records that the coming steps make again are dropped.
        evaluation_due: the run makes the evaluation of `first_step` again: its record is dropped, too.
        first_tokens: the tokens that training had read at `first_step`.
        start_wandb: begins what Weights & Biases gets; None: nothing.
    """

    def __init__(
        self,
        run: Path,
        is_first: bool,
        first_step: int,
        last_step: int,
        tensorboard: bool,
        evaluation_due: bool = False,
        first_tokens: int = 0,
        start_wandb: Callable[[], WandbLog] | None = None,
    ):
        self._active = is_first
        self._writers = None
        self._wandb: WandbLog | None = None
        if not is_first:
            return
        self._console = Console(first_step, last_step)
        path = run / "metrics.jsonl"
        if first_step > 0 and not path.exists():
            self.say(f"warning: {path} is missing: the records up to step {first_step} are lost, and the run goes on")
        try:
            made_again = ("test", *["eval"] * evaluation_due, *[MODEL] * (first_step == last_step))
            kept, damaged = _sorted_out(path, first_step, made_again)
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

            folder = run / "tensorboard"
            # Two, since points are purged by their place on the axis, of which there are two.
            self._writers = (
                SummaryWriter(str(folder), purge_step=first_step + 1),
                SummaryWriter(str(folder / BY_TOKENS), purge_step=first_tokens + 1),
            )
            # TensorBoard dates every point: a clock that is set back must not turn its time axis around.
            self._began = time.time() - time.monotonic()
        if start_wandb is not None:
            with self._sending():
                self._wandb = start_wandb()
                for record in map(json.loads, kept):
                    self._wandb.record(record.pop("kind"), record.pop("step"), record)

    def record(self, kind: str, step: int, figures: dict[str, Any], tokens: int | None = None) -> None:
        """Append one line to metrics.jsonl, and the numbers to TensorBoard; not-finite numbers become null.

        Args:
            tokens: that training has read by then; TensorBoard also draws the loss over them.
        """
        if not self._active:
            return
        values = {name: None if is_bad(value) else value for name, value in figures.items()}
        self._append(kind, step, values)
        with self._drawing():
            self._draw(kind, step, values, tokens)
        self._console.show(kind, step, figures)

    def note_model(self, step: int, of_step: int) -> None:
        """The last step is done, and RUN/model is the model of `of_step`."""
        if self._active:
            self._append(MODEL, step, {OF_STEP: of_step})

    def _append(self, kind: str, step: int, values: dict[str, Any]) -> None:
        try:
            self._lines.add(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._refused = False
        except OSError as error:
            if not self._refused:
                self.say(f"metrics.jsonl refuses: {error.strerror}; its lines are held back until it takes them")
            self._refused = True
        with self._sending():
            if self._wandb is not None:
                self._wandb.record(kind, step, values)

    def _draw(self, kind: str, step: int, values: dict[str, Any], tokens: int | None) -> None:
        if self._writers is None:
            return
        over_steps, over_tokens = self._writers
        now = self._began + time.monotonic()
        for name, value in values.items():
            if isinstance(value, int | float) and name != "items":  # the same at every evaluation
                over_steps.add_scalar(f"{kind}/{name}", value, step, now)
        if tokens is not None and isinstance(values.get("loss"), float):
            over_tokens.add_scalar(f"{BY_TOKENS}/{kind}_loss", values["loss"], tokens, now)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """TensorBoard's files are a copy: where they cannot be written, the run goes on without."""
        try:
            yield
        except OSError as error:
            self._writers = None
            self.say(f"TensorBoard's files refuse: {error.strerror}; nothing more is drawn until the next start")

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """What Weights & Biases has is a copy, too: the network, its service and its library may fail."""
        try:
            yield
        except Exception as error:  # its kinds are the library's own
            self._wandb = None
            self.say(f"Weights & Biases refuses: {reason_of(error)}; nothing more is sent until the next start")

    def begin_steps(self) -> None:
        """The steps begin: a terminal gets a bar from here on."""
        if self._active:
            self._console.begin()

    def note_step(self, step: int) -> None:
        """A step is done, whether it is recorded or not."""
        if self._active:
            self._console.note_step(step)

    def note_phase(self, name: str | None) -> None:
        """What the steps wait for, "eval" say; None: for nothing more."""
        if self._active:
            self._console.note_phase(name)

    def end_steps(self) -> None:
        """No step comes any more: what is said from here on stands below the bar."""
        if self._active:
            self._console.finish()

    def flush(self) -> None:
        """Onto the disk: called before a checkpoint is renamed, so that it never knows more than metrics.jsonl.

        Raises:
            OSError: the disk refuses; the lines are held back, and the next call tries again.
        """
        if self._active:
            self._lines.flush()
            with self._drawing():
                for writer in self._writers or ():
                    writer.flush()

    def say(self, text: str) -> None:
        if self._active:
            self._console.say(text)

    def close(self) -> None:
        if self._active:
            # First, so that nothing that ends the run is told beside the bar.
            self._console.finish()
            self._lines.close()
            with self._drawing():
                for writer in self._writers or ():
                    writer.close()
            with self._sending():
                lacking = None if self._wandb is None else self._wandb.close()
                if lacking is not None:
                    self.say(lacking)


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


def _sorted_out(path: Path, first_step: int, made_again: tuple[str, ...]) -> tuple[list[str], list[bytes]]:
    """The records to keep of a file, and the lines in it that are none.

    A run resumed from `first_step` makes the records of later steps again, those of `made_again` of this one, too, and
    at 0 all of them.
    """
    if not os.path.lexists(path):
        return [], []
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
