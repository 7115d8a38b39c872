"""What tells rows apart: runs are seeds of one if their configurations agree in all that makes a run what it is, and a
row's name says where it differs from others.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..many_runs.read import Run
from ..models.fields import default_fields, earlier_default_fields
from ..settings.configuration import flatten
from .settings import Setting, shortest

# Keys that may differ between the seeds of a row: they say where and when a run was made, not which run it is.
_FREE = (
    "provenance",
    "run.dir",
    "run.seed",
    "run.max_hours",
    "run.stop_at_step",
    "run.hang_minutes",
    "run.check_every",
    "run.allow_changes",
    "data.cache",
    "log",
)
# Further differences are left to the name of the run's folder.
_MOST_DIFFERENCES, _LONGEST_DIFFERENCE = 2, 40
# The folder of a sweep's run: its parent has the name of the row.
_SEED_FOLDER = re.compile(r"seed-\d+")


def _essence(run: Run) -> dict[str, Any]:
    """The configuration without what may differ between the seeds of a row."""
    flat = flatten({**run.values, "model": _model(run), "model_defaults": {}})
    return {key: value for key, value in flat.items() if not any(key == n or key.startswith(f"{n}.") for n in _FREE)}


def _model(run: Run) -> dict[str, Any]:
    """What the run file sets of the model, and the defaults that it was begun with where they are no longer today's."""
    today = default_fields(run.model_type)
    noted = {} if "from" in run.values["model"] else earlier_default_fields(run.model_type)
    if run.value("model_defaults") is not None:
        noted = run.value("model_defaults").get(run.model_type, {})
    return {**{name: value for name, value in noted.items() if today.get(name) != value}, **run.values.get("model", {})}


def key_of(run: Run) -> str:
    """What runs have in common that are seeds of one row."""
    # One folder may have held several tasks, one after the other.
    return json.dumps([_essence(run), run.task, run.length], sort_keys=True, default=str)


# -----------------------------------------------------------------------------
# Names are as short as tells the rows of one table apart, and a model has the same name at all lengths.


def labels_of(groups: list[list[Run]], settings: list[Setting]) -> list[str]:
    """A name for each group: its model type, with the keys in which it differs from others of its setting and type.

    The one whose folder is called like the model type has no more to its name, whatever stands beside it: so it is one
    row, and one curve, at all lengths.
    """
    alike: dict[tuple, list[int]] = defaultdict(list)
    for index, (group, setting) in enumerate(zip(groups, settings, strict=True)):
        alike[setting, group[0].model_type].append(index)
    labels = [group[0].model_type for group in groups]
    for indices in alike.values():
        if len(indices) > 1:
            runs = [groups[index][0] for index in indices]
            plain = [_folder(run).name == run.model_type for run in runs]
            for index, difference, is_plain in zip(indices, _differences(runs), plain, strict=True):
                label = labels[index]
                if not is_plain or sum(plain) > 1:
                    labels[index] = difference if difference.startswith(label) else f"{label} ({difference})"
    return labels


def _differences(runs: list[Run]) -> list[str]:
    """The difference of each of several rows from the others: a few keys if they are short, or else its folder."""
    essences = [_essence(run) for run in runs]
    used = {
        key: [_used(run, essence, key) for run, essence in zip(runs, essences, strict=True)] for key in _keys(essences)
    }
    used = {key: values for key, values in used.items() if len({json.dumps(v, default=str) for v in values}) > 1}
    said = [
        ", ".join(f"{key.removeprefix('model.')} {values[index]}" for key, values in used.items())
        for index in range(len(runs))
    ]
    is_short = len(used) <= _MOST_DIFFERENCES and max(map(len, said)) <= _LONGEST_DIFFERENCE
    # Python's writing of a list or a map is no name.
    is_plain = not any(isinstance(value, list | dict) for values in used.values() for value in values)
    if is_short and is_plain and len(set(said)) == len(said):
        return said
    return shortest([_folder(run) for run in runs])


def _folder(run: Run) -> Path:
    """The folder of a row: that of its run, or of its seeds."""
    folder = run.folder.absolute()
    return folder.parent if _SEED_FOLDER.fullmatch(folder.name) else folder


def _used(run: Run, essence: dict[str, Any], key: str) -> Any:
    """The value that a key has come to: a field of the model that is left out, or null, has a default."""
    name = key.removeprefix("model.")
    return run.model_fields[name] if name != key and name in run.model_fields else essence.get(key)


def _keys(essences: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for essence in essences for key in essence))
