"""Checkpoints: written under a temporary name, hashed, renamed; the newest whole one wins.

`RUN/checkpoints/step-00000200/` holds `engine*` and `random-*` (to go on), `model/` (a Hugging Face folder),
`state.json` (step, samples, counters) and, written last, `manifest.json` (size and SHA-256 of every file).
`RUN/checkpoints/latest` names the newest for people; nothing reads it.
"""

import contextlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.files import flush_to_disk, sha256_of_file, write_json

from ..settings.configuration import CheckpointSection
from ..settings.typed_maps import Mistake, build
from . import contents, hashed_files

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STATE = "state.json"
LATEST = "latest"
# Of the data sets that a run may have (see RunData.fingerprints).
DATA_KEYS = ("data.train", "data.eval", "data.test")
# No run counts further; integers of JSON have no end.
LARGEST_COUNT = 2**63 - 1


@dataclass
class RunState:
    """Where a run stands: everything that is not inside the engine.

    Attributes:
        step: optimizer steps done, dropped ones included.
        samples: samples consumed by them.
        skipped: steps dropped because loss or gradients were not finite, or stood out (`optim.skip_spikes`).
        row_of_skips: steps in a row up to now that were not finite.
        recent: with `optim.skip_spikes`, (loss, gradient norm) of the last steps that were taken (see spikes).
        row_of_spikes: steps dropped as spikes since the last one that was taken.
        interval: sums of loss, hits and items since the last record in metrics.jsonl.
        tokens: valid tokens consumed.
        best_by: metric, mode and evaluated samples that the best checkpoint is chosen by.
        best_step, best_value: the best checkpoint by `checkpoint.best`.
        evaluation_due: the evaluation of this step was cut short by a stop; it is made first on going on.
        stopped_by: what stopped the run here (see stop_conditions.Decision); None in a checkpoint that was due.
        data: what the data sets hold (see RunData.fingerprints).
        figures: of the last evaluation; with `checkpoint.best` those of the best checkpoint.
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


def path_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def begin(run: Path, step: int) -> Path:
    """An empty folder to write a checkpoint into; it counts for nothing before `finish`.

    What earlier ones left behind that were never finished is deleted.

    Raises:
        OSError: e.g. the run folder has gone. It is not made anew, for that might be on another disk.
    """
    folder = path_of(run, step).with_name(f".step-{step:08d}.tmp")
    folder.parent.mkdir(exist_ok=True)
    _put_back(run)
    for unfinished in (*folder.parent.glob(".step-*.tmp"), *folder.parent.glob(".step-*.old")):
        shutil.rmtree(unfinished, ignore_errors=True)
    folder.mkdir()
    return folder


def finish(folder: Path, run: Path, state: RunState, entries: list[dict[str, Any]] | None = None) -> Path:
    """Write state and manifest, flush, rename: from here on the checkpoint exists.

    `entries`: those of the manifest, of files that are written, flushed and verified; by default they are made here.
    One of the same step gives way only now.
    """
    write_json(folder / STATE, asdict(state))
    if entries is None:
        entries = hashed_files.entries(folder, folder)
    else:
        entries = sorted([*entries, hashed_files.entry(folder / STATE, folder)], key=lambda entry: entry["file"])
    for path in [path for path in folder.rglob("*") if path.is_dir()]:
        flush_to_disk(path)
    write_json(folder / MANIFEST, {"step": state.step, "files": entries})
    final, aside = path_of(run, state.step), _aside(run, state.step)
    if final.exists():
        os.replace(final, aside)
    os.replace(folder, final)
    flush_to_disk(final.parent)
    shutil.rmtree(aside, ignore_errors=True)
    return final


def _aside(run: Path, step: int) -> Path:
    """Where a checkpoint lies for the moment in which another of its step takes its place."""
    return path_of(run, step).with_name(f".step-{step:08d}.old")


def _put_back(run: Path) -> None:
    """Give back their names to those that a kill in that moment has left aside."""
    for aside in (run / "checkpoints").glob(".step-*.old"):
        final = aside.with_name(aside.name[1:-4])
        if not final.exists():
            # One that may only read (longmix export) passes it over.
            with contextlib.suppress(OSError):
                os.replace(aside, final)


def point_to(run: Path, step: int) -> None:
    """Let `checkpoints/latest` name this step's checkpoint, for people."""
    final = path_of(run, step)
    temporary = final.with_name(f".{LATEST}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(final.name, target_is_directory=True)
    os.replace(temporary, final.with_name(LATEST))


def defect(folder: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None for a whole one.

    The manifest speaks for the files, not for what they say, nor for those that it leaves out: both are looked at, too.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        entries = [(folder / entry["file"], entry["bytes"], entry["sha256"]) for entry in manifest["files"]]
    except FileNotFoundError:
        return f"{folder / MANIFEST} is missing"
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        return f"{folder / MANIFEST} is damaged ({error})"
    for path, size, digest in entries:
        if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
            return f"{folder / MANIFEST} is damaged (it lists {path}, which is not of this checkpoint)"
        try:
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_size != size:
                return f"{path} has {path.stat().st_size} bytes instead of {size}"
            if sha256_of_file(path) != digest:
                return f"{path} does not have the contents that were written (SHA-256 differs)"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
    listed = {path for path, _, _ in entries}
    if folder / STATE not in listed:
        return f"{folder / MANIFEST} is damaged (it does not list {STATE})"
    try:
        read_state(folder)
        contents.refuse_incomplete(folder, listed)
    except UserError as error:
        return str(error)
    return None


def steps(run: Path) -> list[int]:
    """Steps of the checkpoints of a run, oldest first, whole or not."""
    names = [path.name for path in (run / "checkpoints").glob("step-*") if path.is_dir()]
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,}", name))


def newest(run: Path) -> Path | None:
    """The newest whole checkpoint; incomplete or damaged ones are named in a warning and passed over."""
    _put_back(run)
    for step in reversed(steps(run)):
        folder = path_of(run, step)
        reason = defect(folder)
        if reason is None:
            return folder
        logger.warning("checkpoint passed over: %s", printable(reason))
    return None


def read_state(folder: Path) -> RunState:
    """Where the run stood at a checkpoint. Raises UserError if that is not what its file holds."""
    path = folder / STATE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
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
    """What a default would stand in for hides what was there: a state without it is none."""
    if not isinstance(values, dict):
        yield "the whole", "is no map"
        return
    names = [entry.name for entry in fields(RunState)]
    yield from ((name, "is missing") for name in names if name not in values)
    yield from ((key, "is not a key of a checkpoint's state") for key in values if key not in names)


def _contradictions(state: RunState, folder: Path) -> Iterator[Mistake]:
    if folder.name != path_of(Path(), state.step).name:
        yield "step", f"is {state.step}, but the folder is {folder.name}"
    for name in ("samples", "tokens"):
        if not 0 <= getattr(state, name) <= LARGEST_COUNT:
            yield name, f"is {getattr(state, name)}, but counts"
    for name, most in (("skipped", "step"), ("row_of_skips", "skipped"), ("row_of_spikes", "skipped")):
        if not 0 <= getattr(state, name) <= getattr(state, most):
            yield name, f"is {getattr(state, name)}, but must be 0 to {getattr(state, most)} ({most})"
    if len(state.interval) != 3 or any(len(pair) != 2 for pair in state.recent):
        yield "interval", "and recent are lists of 3 numbers and of pairs"
    if not all(math.isfinite(value) for pair in state.recent for value in pair):
        yield "recent", "holds NaN or infinity, with which nothing can be compared"
    if not all(value is None or type(value) in (int, float) for value in state.figures.values()):
        yield "figures", "are numbers"
    if not _is_best_by(state.best_by):
        yield "best_by", f"is {state.best_by!r}, but takes null or [metric, min or max, samples or null]"
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
    if len(value) != 3:
        return False
    metric, mode, samples = value
    counts = samples is None or (type(samples) is int and samples > 0)
    return type(metric) is str and mode in ("min", "max") and counts


def _is_data(data: dict[str, Any]) -> bool:
    """Whether it names what the data sets hold: of what it left out, nobody would notice that it has changed."""
    if set(data) != set(DATA_KEYS) or not all(isinstance(hashes, list) for hashes in data.values()):
        return False
    hashes = [digest for found in data.values() for digest in found]
    return bool(data["data.train"]) and all(
        isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes
    )


def prune(run: Path, section: CheckpointSection, state: RunState) -> None:
    """Delete what `keep`, `keep_every` and `best` do not hold; call it when the checkpoint of `state` is whole.

    What lies beyond `state` was damaged when the run went on from an older checkpoint: it holds nothing, and counts
    for nothing.
    """
    present = steps(run)
    reached = [step for step in present if step <= state.step]
    kept = set(reached[-section.keep :])
    if section.keep_every is not None:
        kept |= {step for step in reached if step % section.keep_every == 0}
    if state.best_step is not None:
        kept.add(state.best_step)
    for step in set(present) - kept:
        # Renamed first: who reads it meanwhile, or after a kill, finds all of it or nothing.
        folder = path_of(run, step)
        removed = folder.with_name(f".{folder.name}.tmp")
        os.replace(folder, removed)
        shutil.rmtree(removed)
