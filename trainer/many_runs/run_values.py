"""The values of a run folder that sweeps and reports compute with: of the types that they need, or refused by name."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError

_LARGEST = 2**53
_SHOWN_CHARACTERS = 40


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_data(value: Any) -> bool:
    parts = value if isinstance(value, list) and value else [{"path": value}]
    return all(isinstance(part, dict) and isinstance(part.get("path"), str) for part in parts)


def _is_map_of_maps(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(part, dict) for part in value.values())


def _is_best(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metric"), str) and value.get("mode") in ("max", "min")


# {dotted key of config.yaml: (whether a value will do, what is expected)}. What is missing, or null, always will.
_TEXT, _COUNT = (_is_text, "a text"), (_is_count, "a whole number")
_SHARE = (lambda value: type(value) is float and 0 < value < 1, "a number between 0 and 1")
_DATA = (_is_data, "a folder, or a list of maps with a path")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "run.dir": _TEXT,
    "run.seed": (lambda value: type(value) is int, "a whole number"),
    "data.train": _DATA,
    "data.eval": _DATA,
    "data.test": _DATA,
    "objective.name": _TEXT,
    "objective.input_length": _COUNT,
    "objective.horizon": _COUNT,
    "objective.mask_probability": _SHARE,
    "eval.mask_probability": _SHARE,
    "optim.max_steps": _COUNT,
    "checkpoint.every_steps": (lambda value: _is_count(value) and value > 0, "a whole number above 0"),
    "checkpoint.best": (_is_best, "a map with a metric, and max or min as its mode"),
    "model_defaults": (_is_map_of_maps, "a map of maps"),
    "provenance.device": _TEXT,
    "provenance.processes": _COUNT,
    "provenance.parameters": _COUNT,
    "provenance.git_commit": _TEXT,
    "provenance.data.sequence_length": _COUNT,
}


def checked_values(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values of a run's config.yaml, keys as text.

    Raises:
        UserError: with the key, for a value that no run has.
    """
    values = _with_text_keys(values)
    for key, (will_do, expected) in _CHECKS.items():
        found: Any = values
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None and not will_do(found):
            raise UserError(f"{path}: {key} is {_shown(found)}, expected {expected}: the file is damaged or edited")
    return values


def wrong_figure(record: dict[str, Any]) -> str | None:
    """The figure of a record of metrics.jsonl that is neither a number nor null; None if there is none."""
    for name, value in record.items():
        is_number = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
        if name != "kind" and value is not None and not is_number:
            return f"{name} is {_shown(value)}, expected a number or null"
    return None


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(entry) for key, entry in value.items()}
    return [_with_text_keys(entry) for entry in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    """A value from outside, short."""
    is_long = type(value) is int and abs(value) > _LARGEST**2  # Python refuses to write some of them
    text = "a huge number" if is_long else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
