"""Files that longmix has written for itself, read again: whole, of a known size, and of the shape that was written.

They may be damaged, cut short, edited or copied by halves. One reader says of each which file it is, what is wrong with
it, and what to do about it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.data_prep.typed_maps import Mistake, build, convert
from longmix.kernels.common.safe_files import read_input

# More than any of them needs; a list of the samples' predictions is the longest.
LARGEST = 2**28
_LONGEST_REASON = 300


def parse(text: str | bytes, allows_nan: bool = False) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError for any other text, duplicate keys, and endless nesting."""
    if isinstance(text, bytes):
        text = text.decode()
    refusal = {} if allows_nan else {"parse_constant": _refuse_constant}
    try:
        return json.loads(text, object_pairs_hook=unique_keys, **refusal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, allows_nan: bool = False, largest: int = LARGEST) -> Any:
    """The value of a JSON file of at most `largest` bytes.

    Raises:
        OSError: there is none, it cannot be read, is no regular file, or too large.
        ValueError: it is no JSON; see `parse`.
    """
    return parse(read_input(path, largest), allows_nan)


def checked(values: Any, schema: Any) -> Any:
    """`values` as the type `schema`: a dataclass, or what one's fields may be. Raises ValueError, the first mistake."""
    mistakes: list[Mistake] = []
    take = build if dataclasses.is_dataclass(schema) else convert
    result = take(schema, values, "", mistakes, of="this file")
    if mistakes:
        key, text = mistakes[0]
        raise ValueError(f"{key.strip('.') or 'the whole'} {text}"[:_LONGEST_REASON])
    return result


def read_state(path: Path, schema: Any, remedy: str, allows_nan: bool = False) -> Any:
    """What longmix has written to `path`, as `schema` (see `checked`).

    Args:
        remedy: what to do about a damaged file, for people.

    Raises:
        UserError: it is missing or damaged.
        MachineFault: the machine cannot read it.
    """
    try:
        return checked(read_json(path, allows_nan), schema)
    except OSError as error:
        raise refused(f"{path} cannot be read", error, remedy) from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({reason_of(error)}): {remedy}") from None


def read_or_none(path: Path, schema: Any) -> Any:
    """As `read_state`; None for a file that is missing or damaged, where what it holds can be made again."""
    try:
        return checked(read_json(path), schema)
    except (OSError, ValueError):
        return None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's map. Raises ValueError if a key stands twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is no number")
