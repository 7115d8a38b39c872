"""The run folder: its config.yaml, written at the start and compared at every resume, and its lock."""

import fcntl
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import make_folder, write_text
from longmix.kernels.common.safe_files import open_lock, open_to_read, read_input

from ..checkpoints import folders
from ..checkpoints.contents import MODEL
from ..checkpoints.state import read_state
from ..models.defaults import defaults_of_model, with_defaults
from ..models.field_check import FROM, field_mistakes
from ..models.folder import CONFIGURATION
from ..optimization.schedule import learning_rate
from ..settings import reading, shuffling
from ..settings.changes import SCHEDULE_KEYS, changed_keys
from ..settings.configuration import RunConfiguration
from ..settings.objectives import OBJECTIVES
from ..settings.provenance import provenance
from ..settings.run_file import MOST_BYTES
from ..settings.sections import EARLIER_ORDER, EVALUATION_MASK_PROBABILITY, OptimSection
from .own_files import CONFIG, has_own_configuration, is_run, refuse_foreign_files

LOCK = ".lock"
# `is_in_work` takes the lock for a moment, in which a run may want to begin.
LOCK_PATIENCE_SECONDS = 1.0
LOCK_POLL_SECONDS = 0.02


def as_begun(run: Path, now: RunConfiguration) -> RunConfiguration:
    """The configuration with the model's defaults that a run folder was begun with; today's if it is none."""
    return with_defaults(now, _begun(run) if (run / CONFIG).is_file() and is_run(run) else None)


def refuse_changes(run: Path, now: RunConfiguration) -> None:
    """Raise UserError if the run folder was begun with another configuration.

    The schedule of a run that is not finished may be another one if no step that was made would have had another
    learning rate: it is then the run that the new schedule would have made. So a `wsd` run whose rate has not begun to
    fall takes more steps, or fewer.
    """
    path = run / CONFIG
    if not is_run(run):
        return
    if not path.is_file():
        raise UserError(
            f"{run} holds checkpoints, but no {CONFIG} that says which run they are of: put it back (a copy of the "
            "run file that it was begun with will do, with its run.dir), or choose another run.dir"
        )
    before = _begun(run)
    anew = (
        "start anew from its weights, with a fresh optimizer: "
        f"model.from={run}/checkpoints/latest/model and another run.dir"
    )
    if before.optim.name != now.optim.name:
        raise UserError(
            f"{run} holds a run with optim.name {before.optim.name}, whose state is of no use to {now.optim.name}: set "
            f"it back, or {anew}"
        )
    if _order_of_groups(before.optim) != _order_of_groups(now.optim):
        raise UserError(
            f"{run} holds a run with other optim.no_decay or optim.lr_factors, in whose groups its optimizer keeps the "
            "state of the parameters: set them back (factors may only change as long as their order, and what lies "
            f"below, at and above 1, stays), or {anew}"
        )
    left_out = sorted(before.model.keys() - now.model.keys()) if FROM in before.model and FROM in now.model else []
    if left_out and folders.steps(run):
        raise UserError(
            f"{run} holds a run that began with model.{left_out[0]}={before.model[left_out[0]]!r} beside model.from, "
            "and goes on with its checkpoint's model: set it, to this or, with run.allow_changes, to another value"
        )
    changes = changed_keys(before, resolved(run, as_begun(run, now)))
    if any(key in SCHEDULE_KEYS for key, _, _ in changes) and _could_be(now.optim, before.optim, run):
        changes = [change for change in changes if change[0] not in SCHEDULE_KEYS]
    if changes:
        listed = "; ".join(f"{key} was {before!r} and is now {after!r}" for key, before, after in changes)
        names = ", ".join(key for key, _, _ in changes)
        is_of_schedule = any(key in SCHEDULE_KEYS for key, _, _ in changes)
        remedy = _own_warmup(now.optim, before.optim, run) if is_of_schedule else ""
        is_of_model = any(key.startswith("model.") for key, _, _ in changes)
        shapes = " (of a model, only what leaves its weights' shapes as they are)" if is_of_model else ""
        raise UserError(
            f"{run} holds a run with another configuration: {listed}. {remedy}Choose another run.dir, or allow it with "
            f"'run.allow_changes=[{names}]'{shapes}"
        )


def is_unchanged(run: Path, now: RunConfiguration) -> bool:
    """Whether the run in a folder was begun with this configuration, but for what only watches over it."""
    now = replace(now, run=replace(now.run, allow_changes=[]))
    before, now = _begun(run), resolved(run, as_begun(run, now))
    return (before.eval, before.checkpoint) == (now.eval, now.checkpoint) and not changed_keys(before, now)


def _order_of_groups(optim: OptimSection) -> tuple[list[str], dict[str, int]]:
    """What decides which parameters are a group of the optimizer, and the order of the groups."""
    factors = sorted({1.0, *optim.lr_factors.values()})
    one = factors.index(1.0)
    places = {word: factors.index(factor) - one for word, factor in optim.lr_factors.items()}
    return sorted(word.lower() for word in optim.no_decay), places


def _own_warmup(now: OptimSection, before: OptimSection, run: Path) -> str:
    """What to set where a schedule is another one only because its warm-up is a share of other steps; else nothing."""
    steps = before.steps_of_warmup
    if now.warmup_share is None or before.warmup_share is None or steps > now.max_steps:
        return ""
    if not _could_be(replace(now, warmup_share=None, warmup_steps=steps), before, run):
        return ""
    return f"With the warm-up that it was begun with, optim.warmup_steps={steps}, it may have this schedule. "


def _could_be(now: OptimSection, before: OptimSection, run: Path) -> bool:
    """Whether the steps that an unfinished run has made had the learning rates that they would have had under `now`."""
    made = max(folders.steps(run), default=0)
    return made < before.max_steps and all(
        learning_rate(before, step) == learning_rate(now, step) for step in range(1, made + 1)
    )


def risen_rate(run: Path, now: RunConfiguration, step: int) -> list[str]:
    """A line if the schedule was changed by force, and the learning rate after `step` jumps back up."""
    before = _begun(run).optim
    was, known = learning_rate(before, step), learning_rate(now.optim, step)
    follows = learning_rate(now.optim, step + 1)
    if known == was or follows <= 2 * was or step >= now.optim.max_steps:
        return []
    return [
        f"the learning rate rises from {was:.2e} at step {step} to {follows:.2e}, for the schedule is another one: to "
        f"train a finished model further, begin a run from it (model.from={run}/model and another run.dir), or go on "
        "from a checkpoint before its rate fell"
    ]


def resolved(run: Path, now: RunConfiguration) -> RunConfiguration:
    """The configuration with what it leaves open as the run in the folder has it, or by default for a new one.

    data.partitions, data.window and data.order: a run keeps its order. eval.mask_probability: a run of an earlier
    version, whose config.yaml does not have it, evaluated at the share of its training.

    Raises:
        UserError: config.yaml cannot be read.
    """
    before = reading.load([str(run / CONFIG)], []) if has_own_configuration(run) else None
    data = now.data
    if before is not None:
        noted = shuffling.settled(before.data, before.batch)
        partitions = noted.partitions if data.partitions == "auto" else data.partitions
        window, order = data.window or noted.window, data.order or noted.order
        data = replace(data, partitions=partitions, window=window, order=order)
    else:
        data = replace(data, order=data.order or _saved_order(run))
    now = replace(now, data=shuffling.settled(data, now.batch))
    if now.eval.mask_probability is not None or not OBJECTIVES[now.objective.name].hides_tokens:
        return now
    share = EVALUATION_MASK_PROBABILITY
    if before is not None and OBJECTIVES[before.objective.name].hides_tokens:
        share = before.eval.mask_probability or before.objective.mask_probability
    return replace(now, eval=replace(now.eval, mask_probability=share))


def _begun(run: Path) -> RunConfiguration:
    begun = reading.load([str(run / CONFIG)], [], field_mistakes)
    if not has_own_configuration(run):
        # A run file that stands in for a lost config.yaml does not know the defaults of the version that began the run.
        begun = defaults_of_model(begun, _fields_of_saved_model(run))
        begun = replace(begun, data=replace(begun.data, order=begun.data.order or _saved_order(run)))
    return with_defaults(replace(begun, data=shuffling.settled(begun.data, begun.batch)))


def _fields_of_saved_model(run: Path) -> dict[str, Any]:
    """The fields of the model in the last checkpoint whose configuration can be read; empty if there is none."""
    for step in reversed(folders.steps(run)):
        try:
            path = folders.path_of(run, step) / MODEL / CONFIGURATION
            fields = json.loads(read_input(path, MOST_BYTES).decode())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            return fields
    return {}


def _saved_order(run: Path) -> int | None:
    """data.order of the last checkpoint whose state can be read; None if there is none."""
    for step in reversed(folders.steps(run)):
        try:
            order = read_state(folders.path_of(run, step)).order
        except UserError:
            continue
        return order[2] if len(order) == 3 else EARLIER_ORDER
    return None


def noted_facts(run: Path) -> dict[str, Any]:
    """What `write_configuration` has noted of a run beside its configuration; empty if there is none to be read."""
    try:
        values = yaml.safe_load(read_input(run / CONFIG, MOST_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    facts = values.get(reading.PROVENANCE_KEY) if isinstance(values, dict) else None
    return facts if isinstance(facts, dict) else {}


def refuse_unusable(run: Path) -> None:
    """Raise UserError if the run folder cannot be made or written, or holds what is not a run's. Changes nothing."""
    existing = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"run.dir is {run}, but {existing} is a file: name a folder")
    if not os.access(existing, os.W_OK):
        raise UserError(f"run.dir is {run}, but {existing} cannot be written to: name another folder")
    if existing == run and (run / "manifest.json").is_file():
        raise UserError(f"run.dir is {run}, which holds a data set: name another folder")
    checkpoints = run / "checkpoints"
    if os.path.lexists(checkpoints) and not checkpoints.is_dir():
        raise UserError(f"{checkpoints} is no folder, and takes no checkpoints: move it away, or name another run.dir")
    refuse_foreign_files(run)


class RunLock:
    """Context that holds a run folder for one run; the system frees it however the process ends."""

    def __init__(self, run: Path):
        self._run = run

    def __enter__(self) -> None:
        try:
            make_folder(self._run)
        except OSError as error:
            raise refused(f"run.dir {self._run} cannot be used", error) from None
        try:
            self._file = open_lock(self._run / LOCK)
        except OSError as error:
            raise refused(f"run.dir {self._run} cannot be used: {self._run / LOCK}", error) from None
        deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
        while not self._takes_lock():
            if time.monotonic() > deadline:
                self._file.close()
                raise UserError(f"another process trains in {self._run} now: wait for it, or choose another run.dir")
            time.sleep(LOCK_POLL_SECONDS)

    def _takes_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # A file system without locks: then nothing can be said.
            pass
        return True

    def __exit__(self, *error: object) -> None:
        self._file.close()


def is_in_work(run: Path) -> bool:
    """Whether another process trains in the run folder now (see RunLock). Changes nothing."""
    try:
        with open_to_read(run / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Never begun, a file system without locks, or something else of that name, which RunLock refuses.
        return False
    return False


def write_configuration(run: Path, now: RunConfiguration, facts: dict[str, Any] | None = None) -> None:
    """Write config.yaml. `facts`: what else is to be known of the run later: device, parameters, data.

    A copy of the run file that somebody has put there in its place is kept beside it.
    """
    try:
        if (run / CONFIG).exists() and not has_own_configuration(run):
            os.rename(run / CONFIG, _free_name(run / CONFIG))
        write_text(run / CONFIG, reading.dump(now, {**provenance(), **(facts or {})}))
    except OSError as error:
        raise refused(f"run.dir {run} cannot be written", error) from None


def _free_name(path: Path) -> Path:
    """config.yaml -> config.1.yaml, or the first such name that is not taken."""
    names = (path.with_stem(f"{path.stem}.{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
