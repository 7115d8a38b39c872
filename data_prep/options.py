"""The options of a command as the fields of its settings."""

import argparse
import dataclasses
from typing import Any


def given_options(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The fields of the dataclass `settings` that parsed arguments have, lists of values as tuples."""
    names = [item.name for item in dataclasses.fields(settings) if item.name in arguments]
    given = {name: getattr(arguments, name) for name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
