"""The differences between two configurations of one run, and those that a resumed run may have."""

import os
from collections.abc import Iterable
from typing import Any

from . import configuration as configurations
from . import deepspeed_file
from .configuration import RunConfiguration

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
# Decide the learning rate of each step, and nothing else: free where no step so far had another (run/folder.py).
SCHEDULE_KEYS = (
    "optim.schedule",
    "optim.decay_share",
    "optim.warmup_steps",
    "optim.warmup_share",
    "optim.max_steps",
)


# Their contents are compared with the checkpoint's (checkpoints/resuming.py), so that a folder may be called otherwise.
_DATA_KEYS = ("data.train", "data.eval", "data.test")


def is_free(key: str, free: Iterable[str]) -> bool:
    """Whether a key, or a section that holds it, is among `free`."""
    return any(key == name or key.startswith(f"{name}.") for name in free)


def changed_keys(before: RunConfiguration, now: RunConfiguration) -> list[tuple[str, Any, Any]]:
    """(key, value before, value now) of every key that differs and is not free to."""
    free = (*FREE_KEYS, *now.run.allow_changes)
    first, second = (_flat(configuration) for configuration in (before, now))
    return [
        (key, first.get(key), second.get(key))
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
        and not is_free(key, free)
        and not (key in _DATA_KEYS and _are_same_places(first[key], second[key], before.run.dir, now.run.dir))
        # Left to the device, it is what the checkpoint says, which no other may go on from.
        and not (key == "precision" and "auto" in (first[key], second[key]))
        and not (key == "deepspeed" and _differ_in_stage_alone(first[key], second[key]))
    ]


def _flat(configuration: RunConfiguration) -> dict[str, Any]:
    """Every key, with a model's noted defaults as if the run file set them."""
    return configurations.flatten(
        {**configuration.to_dict(), "model": configuration.model_fields(), "model_defaults": {}}
    )


def _are_same_places(before: Any, now: Any, run_before: str | None, run_now: str | None) -> bool:
    """Whether two values of a key of data name the same folders, or such as were moved together with the run's: those
    of before are no longer there.
    """
    if _places(before, None) == _places(now, None):
        return True
    known = before if isinstance(before, list) else [{"path": before}]
    is_there = any(entry["path"] is None or os.path.lexists(entry["path"]) for entry in known)
    bases_are_known = None not in (run_before, run_now)
    return not is_there and bases_are_known and _places(before, run_before) == _places(now, run_now)


def _places(value: Any, base: str | None) -> Any:
    """The paths in a value of a key of data, absolute, or as seen from the folder `base`; URLs as they are."""
    if isinstance(value, list):
        return [{**entry, "path": _places(entry["path"], base)} for entry in value]
    if not value or "://" in value:
        return value
    return os.path.realpath(value) if base is None else os.path.relpath(value, base)


def _differ_in_stage_alone(before: str | None, now: str | None) -> bool:
    """Whether two values of `deepspeed` say the same but for ZeRO's stage, 1 or 2: checkpoints serve both."""
    if before is None or now is None:
        return False
    files = [deepspeed_file.read(name) for name in (before, now)]
    stages = {deepspeed_file.stage_of(values) for values in files}
    for values in files:
        section = values.get("zero_optimization")
        if isinstance(section, dict):
            section.pop("stage", None)
    return stages <= {1, 2} and files[0] == files[1]
