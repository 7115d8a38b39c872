"""The run folder's config.yaml: written at the start, compared at every resume."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_text

from ..checkpoints import folders
from ..settings import configuration as configurations
from ..settings import deepspeed_file
from ..settings.configuration import RunConfiguration, RunSection
from ..settings.provenance import provenance

CONFIG = "config.yaml"
LOCK = ".lock"
# A look at the lock (`is_in_work`) holds it for a moment, in which a run may want to begin.
LOCK_PATIENCE_SECONDS = 1.0
LOCK_POLL_SECONDS = 0.02

# May differ on resume: they change what is watched and kept, or how a batch is cut, not which run it is.
FREE_KEYS = (
    "run.dir",
    "run.allow_changes",
    "run.max_hours",
    "run.stop_at_step",
    "run.hang_minutes",
    "run.check_every",
    "batch.micro_batch",
    "data.cache",
    "eval",
    "checkpoint",
    "log",
)


def _is_free(key: str, free: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in free)


def changed_keys(before: RunConfiguration, now: RunConfiguration) -> list[tuple[str, Any, Any]]:
    """(key, value before, value now) of every key that differs and is not free to."""
    free = (*FREE_KEYS, *now.run.allow_changes)
    first, second = configurations.flatten(before.to_dict()), configurations.flatten(now.to_dict())
    return [
        (key, first.get(key), second.get(key))
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
        and not _is_free(key, free)
        and not (key == "deepspeed" and _differ_in_stage_alone(first[key], second[key]))
    ]


def _differ_in_stage_alone(before: str | None, now: str | None) -> bool:
    """Whether two values of `deepspeed` say the same but for ZeRO's stage, 1 or 2: checkpoints serve both."""
    if before is None or now is None:
        return False
    files = [deepspeed_file.read(name) for name in (before, now)]
    stages = {deepspeed_file.stage_of(values) for values in files}
    for values in files:
        values.get("zero_optimization", {}).pop("stage", None)
    return stages <= {1, 2} and files[0] == files[1]


def refuse_changes(run: Path, now: RunConfiguration) -> None:
    """Raise UserError if the run folder was begun with another configuration."""
    path = run / CONFIG
    if not path.is_file():
        if folders.steps(run):
            raise UserError(
                f"{run} holds checkpoints, but no {CONFIG} that says which run they are of: put it back (a copy of the "
                "run file that it was begun with will do), or choose another run.dir"
            )
        return
    changes = changed_keys(configurations.load([str(path)], []), now)
    if changes:
        listed = "; ".join(f"{key} was {before!r} and is now {after!r}" for key, before, after in changes)
        names = ", ".join(key for key, _, _ in changes)
        raise UserError(
            f"{run} holds a run with another configuration: {listed}. Choose another run.dir, or allow it with "
            f"'run.allow_changes=[{names}]'"
        )


def refuse_other_data(run: RunSection, before: dict[str, list[str]], now: dict[str, list[str]]) -> None:
    """Raise UserError if a key of the run file names other data than the checkpoint's (see RunData.fingerprints)."""
    changed = [key for key in before if before[key] != now.get(key) and not _is_free(key, tuple(run.allow_changes))]
    if changed:
        keys = ", ".join(changed)
        raise UserError(
            f"{keys}: the data of the run in {run.dir} have changed since its checkpoint was written. Bring back what "
            f"was there, choose another run.dir, or allow it with 'run.allow_changes=[{keys}]'"
        )


def refuse_fewer_steps(run: RunSection, last_step: int, step: int) -> None:
    """Raise UserError if the run stands beyond its last step, where its schedule of learning rates has no value."""
    if last_step < step:
        raise UserError(
            f"optim.max_steps is {last_step}, but the run in {run.dir} stands at step {step}: set it to {step} or "
            "more, or choose another run.dir (longmix export --step gives the model of an earlier checkpoint)"
        )


def refuse_unusable(run: Path) -> None:
    """Raise UserError if the run folder cannot be made or written, or is a data set. Changes nothing."""
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


class RunLock:
    """Context that holds a run folder for one run; the system frees it however the process ends."""

    def __init__(self, run: Path):
        self._run = run

    def __enter__(self) -> None:
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            self._file = open(self._run / LOCK, "w")
        except OSError as error:
            raise UserError(f"run.dir {self._run} cannot be used: {error.strerror}") from None
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
        with open(run / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Never begun, or a file system without locks.
        return False
    return False


def write_configuration(run: Path, now: RunConfiguration, facts: dict[str, Any] | None = None) -> None:
    """Write config.yaml. `facts`: what else is to be known of the run later: device, parameters, data."""
    try:
        write_text(run / CONFIG, configurations.dump(now, {**provenance(), **(facts or {})}))
    except OSError as error:
        raise UserError(f"run.dir {run} cannot be written: {error.strerror}") from None
