"""The state of a run beside that of its engine: written with each checkpoint, and checked when it is read."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.state_files import read_json
from longmix.data_prep.typed_maps import Mistake, build

from ..settings.sections import ORDER

STATE = "state.json"
# The keys of a run file that name data sets (see RunData.fingerprints).
DATA_KEYS = ("data.train", "data.eval", "data.test")
# Keys that checkpoints of earlier versions lack: what their defaults say was so then.
ADDED_KEYS = ("empty", "order", "products", "seed")
# Who makes the larger products of fp32 matrices.
ONEDNN, TORCH = "oneDNN", "torch"
# No run counts further; integers of JSON have no end.
LARGEST_COUNT = 2**63 - 1


@dataclass
class RunState:
    """The state of a run: everything that is not inside the engine.

    The step loop counts. Of the other fields each has one owner: `recent` and `row_of_spikes` the SpikeGuard, what is
    the best and its figures the Evaluator, though a Saver whose disk refuses takes that back (`forget_best_beyond`).

    Attributes:
        step: optimizer steps done, dropped ones included.
        samples: samples consumed by them.
        skipped: steps dropped because loss or gradients were not finite, or stood out (`optim.skip_spikes`).
        empty: steps passed over because no rank had anything to predict in its share of the batch.
        row_of_skips: steps in a row up to now that were not finite.
        recent: with `optim.skip_spikes`, (loss, gradient norm) of the last steps that were taken (see run.spikes).
        row_of_spikes: steps dropped as spikes since the last one that was taken.
        interval: sums of loss, hits and items since the last record in metrics.jsonl.
        tokens: valid tokens consumed.
        best_by: metric, mode and evaluated samples that the best checkpoint is chosen by, and the share of the tokens
            that evaluations hide where training hides another.
        best_step, best_value: the best checkpoint by `checkpoint.best`.
        evaluation_due: the evaluation of this step was cut short by a stop; a resumed run makes it first.
        stopped_by: what stopped the run here (see stop_conditions.Decision); None in a checkpoint that was due.
        data: what the data sets hold (see RunData.fingerprints).
        figures: of the last evaluation; with `checkpoint.best` those of the best checkpoint.
        order: data.partitions, data.window and data.order, which with the seed decide which sample is the next; without
            the last where that is 1, and empty in checkpoints of earlier versions.
        products: ONEDNN or TORCH, as the run was begun; None: an earlier version did not note it.
        seed: run.seed as the generators were seeded; a run that goes on with another one keeps them. None: an earlier
            version did not note it, and run.seed may have been another one.
    """

    step: int = 0
    samples: int = 0
    skipped: int = 0
    row_of_skips: int = 0
    recent: list[list[float]] = field(default_factory=list)
    row_of_spikes: int = 0
    interval: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    tokens: int = 0
    best_by: list[Any] | None = None
    best_step: int | None = None
    best_value: float | None = None
    evaluation_due: bool = False
    stopped_by: str | None = None
    data: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    empty: int = 0
    order: list[int] = field(default_factory=list)
    products: str | None = None
    seed: int | None = None

    def forget_best_beyond(self, newest: "RunState") -> None:
        """Take back a best whose checkpoint was not written; `newest`: the state of the newest whole one."""
        if self.best_step is not None and self.best_step > newest.step:
            self.best_step, self.best_value, self.figures = newest.best_step, newest.best_value, newest.figures


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def read_state(folder: Path) -> RunState:
    """Read where the run stood at a checkpoint. Raises UserError if its file does not say so."""
    path = folder / STATE
    try:
        values = read_json(path, allows_nan=True)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    mistakes = list(_odd_keys(values))
    state = build(RunState, values if not mistakes else {}, "", mistakes)
    mistakes = mistakes or list(_contradictions(state, folder))
    if mistakes:
        key, text = mistakes[0]
        raise UserError(f"{path}: {key} {text}")
    return state


def _odd_keys(values: Any) -> Iterator[Mistake]:
    """Keys that are missing or unknown: a default in place of a missing one would hide what was there."""
    if not isinstance(values, dict):
        yield "the whole", "is no map"
        return
    names = [entry.name for entry in fields(RunState)]
    yield from ((name, "is missing") for name in names if name not in values and name not in ADDED_KEYS)
    yield from ((key, "is not a key of a checkpoint's state") for key in values if key not in names)


def _contradictions(state: RunState, folder: Path) -> Iterator[Mistake]:
    if folder.name != name_of(state.step):
        yield "step", f"is {state.step}, but the folder is {folder.name}"
    for name in ("samples", "tokens"):
        if not 0 <= getattr(state, name) <= LARGEST_COUNT:
            yield name, f"is {getattr(state, name)}, but counts"
    for name, most in (("skipped", "step"), ("row_of_skips", "skipped"), ("row_of_spikes", "skipped")):
        if not 0 <= getattr(state, name) <= getattr(state, most):
            yield name, f"is {getattr(state, name)}, but must be 0 to {getattr(state, most)} ({most})"
    if not 0 <= state.empty <= state.step - state.skipped:
        yield "empty", f"is {state.empty}, but must be 0 to {state.step - state.skipped} (step - skipped)"
    if len(state.interval) != 3 or any(len(pair) != 2 for pair in state.recent):
        yield "interval", "and recent are lists of 3 numbers and of pairs"
    if not all(math.isfinite(value) for pair in state.recent for value in pair):
        yield "recent", "holds NaN or infinity, with which nothing can be compared"
    if not all(value is None or type(value) in (int, float) for value in state.figures.values()):
        yield "figures", "are numbers"
    if state.order and (len(state.order) < 2 or min(state.order) < 1 or state.order[2:] not in ([], [ORDER])):
        yield (
            "order",
            f"must hold the partitions and the window of the data, both positive, and for a new order {ORDER}",
        )
    if state.products not in (ONEDNN, TORCH, None):
        yield "products", f"is {state.products!r}, but takes {ONEDNN} or {TORCH}"
    if state.seed is not None and not 0 <= state.seed <= LARGEST_COUNT:
        yield "seed", f"is {state.seed}, but takes null, or 0 to {LARGEST_COUNT}"
    if not _is_best_by(state.best_by):
        yield "best_by", f"is {state.best_by!r}, but takes null or [metric, min or max, samples or null(, masks)]"
    if state.best_step is not None and not 0 < state.best_step <= state.step:
        yield "best_step", f"is {state.best_step}, but must be 1 to {state.step} (step)"
    if state.best_step is not None and (state.best_value is None or "loss" not in state.figures):
        yield "best_step", "needs best_value and figures"
    if state.best_step is None and state.best_value is not None:
        yield "best_value", "needs best_step"
    if not _is_data(state.data):
        yield "data", f"must hold the SHA-256 of the data sets of {', '.join(DATA_KEYS)}"


def _is_best_by(value: list[Any] | None) -> bool:
    if value is None:
        return True
    if len(value) not in (3, 4):
        return False
    metric, mode, samples, *share = value
    counts = samples is None or (type(samples) is int and samples > 0)
    shares = all(type(one) is float and 0 < one < 1 for one in share)
    return type(metric) is str and mode in ("min", "max") and counts and shares


def _is_data(data: dict[str, Any]) -> bool:
    """Whether it names what each data set holds: a change of one that it left out would go unnoticed."""
    if set(data) != set(DATA_KEYS) or not all(isinstance(hashes, list) for hashes in data.values()):
        return False
    hashes = [digest for found in data.values() for digest in found]
    return bool(data["data.train"]) and all(
        isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes
    )
