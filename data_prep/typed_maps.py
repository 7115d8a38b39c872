"""Dataclasses from the maps of a run file, or of a file of ours: every mistake in them is noted, none raised."""

import difflib
import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

# (dotted key, what is wrong with it)
Mistake = tuple[str, str]


def nearest(name: str, allowed: typing.Iterable[str], prefix: str = "") -> str:
    """A hint naming the valid name nearest to `name`, with `prefix` before it, else all of them."""
    allowed = list(allowed)
    close = _close(name, allowed)
    return f"did you mean {prefix}{close[0]}?" if close else f"allowed: {', '.join(allowed)}"


def _close(name: str, allowed: list[str]) -> list[str]:
    """The valid name nearest to `name`, if one is near.

    A valid name may be the initials of what was written: learning_rate, however mistyped, is lr.
    """
    initials = "".join(word[:1] for word in name.split("_"))
    return difflib.get_close_matches(name, allowed, n=1, cutoff=0.5) or [one for one in allowed if one == initials]


def build(cls: type, values: Any, prefix: str, mistakes: list[Mistake], of: str = "a run file") -> Any:
    """A section from a map. A bad value is noted and a stand-in taken, so that one pass finds every mistake.

    `of`: what the keys belong to.
    """
    hints = typing.get_type_hints(cls)
    is_map = isinstance(values, dict)
    if not is_map:
        mistakes.append((prefix.rstrip("."), f"is {values!r}, but takes a map with: {', '.join(hints)}"))
        values = {}
    for key in values:
        if key not in hints:
            mistakes.append((f"{prefix}{key}", f"is not a key of {of}; {nearest(str(key), hints, prefix)}"))
    arguments = {}
    for entry in fields(cls):
        hint, dotted = hints[entry.name], f"{prefix}{entry.name}"
        has_default = entry.default is not MISSING or entry.default_factory is not MISSING
        noted = len(mistakes)
        if entry.name in values:
            converted = convert(hint, values[entry.name], dotted, mistakes, of)
            if len(mistakes) == noted or is_dataclass(converted):
                arguments[entry.name] = converted
        elif is_dataclass(hint) and not has_default:
            arguments[entry.name] = build(hint, {}, f"{dotted}.", mistakes, of)
        elif not has_default and is_map:
            mistakes.append((dotted, "is missing and has no default"))
        if entry.name not in arguments and not has_default:
            arguments[entry.name] = {} if typing.get_origin(hint) is dict else "-"
    return cls(**arguments)


def convert(hint: Any, value: Any, key: str, mistakes: list[Mistake], of: str = "a run file") -> Any:
    """A value of the type `hint`, or None and a mistake noted under `key`."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is Any:
            return value
        if is_dataclass(option) and (isinstance(value, dict) or len(options) <= 2):
            return build(option, value, f"{key}.", mistakes, of)
        if typing.get_origin(option) is list and isinstance(value, list):
            (element,) = typing.get_args(option)
            return [convert(element, item, f"{key}[{index}]", mistakes, of) for index, item in enumerate(value)]
        if typing.get_origin(option) is Literal and value in typing.get_args(option):
            return value
        if typing.get_origin(option) is dict and isinstance(value, dict):
            _, entry = typing.get_args(option)
            return {name: convert(entry, item, f"{key}.{name}", mistakes, of) for name, item in value.items()}
        if option is float and _is_number(value):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
    hint_text = ""
    for option in options:
        if typing.get_origin(option) is Literal and isinstance(value, str):
            hint_text = "".join(f"; did you mean {name}?" for name in _close(value, list(typing.get_args(option))))
    mistakes.append((key, f"is {value!r}, but takes {_describe(options)}{hint_text}"))
    return None


def _is_number(value: Any) -> bool:
    """Also a whole number, if it is not beyond every float."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)


def _describe(options: tuple) -> str:
    words = []
    for option in options:
        if typing.get_origin(option) is Literal:
            words.extend(str(value) for value in typing.get_args(option))
        elif typing.get_origin(option) is list:
            words.append("a list")
        elif is_dataclass(option) or typing.get_origin(option) is dict:
            words.append("a map")
        else:
            words.append(
                {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(option, "null")
            )
    return " or ".join(words)
