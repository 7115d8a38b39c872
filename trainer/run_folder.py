"""The run folder's config.yaml: written at the start, compared at every resume."""

from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_text

from . import configuration as configurations
from .configuration import RunConfiguration
from .provenance import provenance

CONFIG = "config.yaml"

# May differ on resume: they change what is watched and kept, or how a batch is cut, not which run it is.
FREE_KEYS = ("run.dir", "run.allow_changes", "batch.micro_batch", "data.cache", "eval", "checkpoint", "log")


def _is_free(key: str, free: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in free)


def changed_keys(before: RunConfiguration, now: RunConfiguration) -> list[tuple[str, Any, Any]]:
    """(key, value before, value now) of every key that differs and is not free to."""
    free = (*FREE_KEYS, *now.run.allow_changes)
    first, second = configurations.flatten(before.to_dict()), configurations.flatten(now.to_dict())
    return [
        (key, first.get(key), second.get(key))
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key) and not _is_free(key, free)
    ]


def refuse_changes(run: Path, now: RunConfiguration) -> None:
    """Raise UserError if the run folder was begun with another configuration."""
    path = run / CONFIG
    if not path.is_file():
        return
    changes = changed_keys(configurations.load([str(path)], []), now)
    if changes:
        listed = "; ".join(f"{key} was {before!r} and is now {after!r}" for key, before, after in changes)
        names = ", ".join(key for key, _, _ in changes)
        raise UserError(
            f"{run} holds a run with another configuration: {listed}. Choose another run.dir, or allow it with "
            f"'run.allow_changes=[{names}]'"
        )


def write_configuration(run: Path, now: RunConfiguration) -> None:
    write_text(run / CONFIG, configurations.dump(now, provenance()))
