"""Options of commands: as the fields of settings, and those that several commands have."""

import argparse
import dataclasses
from typing import Any

from longmix.data_prep.remote import is_remote


def given_options(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The fields of the dataclass `settings` that parsed arguments have, lists of values as tuples."""
    names = [item.name for item in dataclasses.fields(settings) if item.name in arguments]
    given = {name: getattr(arguments, name) for name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def output_folder(name: str) -> str:
    """`name` if it can be that of a folder to write: the `type` of an option. Raises argparse.ArgumentTypeError."""
    if is_remote(name):
        raise argparse.ArgumentTypeError(f"{name!r} is a URL, but a folder of a file system is written: name one")
    return name
