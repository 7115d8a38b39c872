"""Reading run files: YAML, `extends`, merging and `dotted.key=value` changes, with the origin of every key."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from longmix.data_prep.errors import UserError, reason_of

from .optimizers import OPTIMIZERS

# Values of a run file, each counted as often as aliases (*name) repeat it.
MOST_VALUES = 100_000
# Lists and maps within each other: no setting needs more than three.
MOST_LEVELS = 50
# Files of one command, each counted as often as it is extended, and bytes of them all. The config.yaml of a run keeps
# the changes of a whole checkout.
MOST_FILES = 100
MOST_BYTES = 4 * 2**20
# The folder of the run files that come with longmix, which an installed package does not have.
_REPOSITORY = Path(__file__).resolve().parents[2]
_SHIPPED = "configs"


# YAML, but only the part that means settings: run files come from anybody.


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 1e-3 as a number and a date as text (YAML 1.2), and refuses tags, a key that stands twice in
    one map, a key that is no single word, a map that holds itself, nesting and aliases without end."""

    _levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            name = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.composer.ComposerError(
                None, None, f"the tag {name} has no place in a run file", event.start_mark
            )
        if self._levels > MOST_LEVELS:
            problem = f"lists or maps are nested too deeply (more than {MOST_LEVELS} levels)"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # Before merge keys (<<) are resolved: what they bring in may well stand there again.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a list or a map cannot be a key", key.start_mark)
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add((key.tag, key.value))
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        if _count(node, {}) > MOST_VALUES:
            problem = f"with its aliases followed it holds more than {MOST_VALUES} values"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        # Whole at once: only then does a map that holds itself raise.
        self.deep_construct = True
        return super().construct_document(node)


def _count(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Values below a node and itself; `known` are those of nodes that were counted before."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if node not in known:
        known[node] = 0  # one that holds itself is refused later
        parts = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
        known[node] = 1 + sum(_count(part, known) for part in parts)
    return known[node]


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in resolvers if entry[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


# Merging: each key remembers the file that set it, so that a mistake can name it.

# Of two keys that exclude each other a later file's, or change's, takes the place of an earlier one's.
_INSTEAD_OF = {"optim.warmup_steps": "optim.warmup_share", "optim.warmup_share": "optim.warmup_steps"}


@dataclass
class Settings:
    """Merged keys of several run files, and where each key was set (for error messages).

    Attributes:
        last: the file read last; where a key stands that nothing sets.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    last: str = "run file"

    def merge(self, values: dict[str, Any], origin: str) -> None:
        """Merge `values` key by key over what is here: maps merge, everything else is replaced, later wins."""
        self._merge(self.values, values, origin, "")

    def _merge(self, target: dict[str, Any], values: dict[str, Any], origin: str, prefix: str) -> None:
        for key, value in values.items():
            dotted = f"{prefix}{key}"
            self.origin[dotted] = origin
            if isinstance(value, dict):
                if not isinstance(target.get(key), dict):
                    target[key] = {}
                self._merge(target[key], value, origin, f"{dotted}.")
            else:
                for other in _given_up_for(dotted, value):
                    if self.origin.get(other, origin) != origin:
                        target.pop(other.rpartition(".")[2], None)
                target[key] = value


def _given_up_for(key: str, value: Any) -> list[str]:
    """Keys of earlier files that a later one's key takes the place of: the one that it excludes, and what another
    optimizer alone takes.
    """
    if key == "optim.name" and isinstance(value, str) and value in OPTIMIZERS:
        own = OPTIMIZERS[value].arguments
        return [f"optim.{name}" for row in OPTIMIZERS.values() for name in row.arguments if name not in own]
    return [_INSTEAD_OF[key]] if key in _INSTEAD_OF and value is not None else []


def parse_yaml(text: str, origin: str) -> Any:
    """YAML as maps, lists, texts, numbers, truth values and null. Raises UserError if it cannot be read."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{origin}, line {mark.line + 1}" if mark is not None else origin
        problem = reason_of(getattr(error, "problem", None) or error)
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    except ValueError as error:
        # A tag that does not fit its value, or a number of thousands of digits.
        raise UserError(f"{origin}: a value cannot be read: {error}") from None


# Reading: files in their order with what they extend, then the changes of the command line.


def read_settings(paths: list[str], overrides: list[str]) -> Settings:
    """Read run files in order, then `dotted.key=value` changes; a run folder stands for its own config.yaml.

    Raises:
        UserError: a file is missing or not YAML, `extends` runs in a circle or has no end, a change has no `=`.
    """
    settings, files, folders = Settings(), _Files(), {}
    for path in paths:
        files.read_into(settings, path, ())
        if os.path.isdir(path):
            folders[path] = _run_folder(settings)
    for override in overrides:
        key, separator, text = override.partition("=")
        word = key.removeprefix("optim.lr_factors.")
        if separator and word != key and "." in word:
            raise UserError(f"{key}: a word with dots takes braces: optim.lr_factors={{{word}: {text}}}")
        if not separator or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key):
            raise UserError(f"{override!r} is neither a file nor a change: write dotted.key=value, e.g. optim.lr=3e-4")
        if key.count(".") > MOST_LEVELS:
            raise UserError(f"command line: the key {key[:40]}... has more than {MOST_LEVELS} parts, so it is none")
        value = parse_yaml(text, f"command line, {key}")
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        _refuse_scalar_parents(settings, key)
        settings.merge(nested, "command line")
    for path, inside in folders.items():
        # Relative to another working directory, or a copy: the run that is named would stay as it is.
        if inside is not None and inside == _run_folder(settings) and not _are_same(path, inside):
            raise UserError(
                f"{path}: its config.yaml has the run.dir {inside}, which is not this folder: add run.dir={path} to go "
                "on with it, or another run.dir for a new run"
            )
    return settings


def _run_folder(settings: Settings) -> str | None:
    section = settings.values.get("run")
    folder = section.get("dir") if isinstance(section, dict) else None
    return folder if isinstance(folder, str) else None


def _are_same(folder: str, other: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


def _refuse_scalar_parents(settings: Settings, key: str) -> None:
    values: Any = settings.values
    parts = key.split(".")
    for depth, part in enumerate(parts[:-1]):
        values = values.get(part, {})
        if not isinstance(values, dict):
            parent = ".".join(parts[: depth + 1])
            shown = "null" if values is None else repr(values)
            raise UserError(
                f"command line: {key} cannot be set, because {parent} is {shown} and not a map: set {parent} itself"
            )


def _where_else(path: str) -> str:
    """Where a file lies that is not there: run files are named as they stand in the repository, from anywhere."""
    if os.path.lexists(path) or path.partition("/")[0] != _SHIPPED:
        return ""
    shipped = _REPOSITORY / path
    if shipped.is_file():
        return f" in this folder: it is {shipped}"
    return f" in this folder: the folder {_SHIPPED} is part of longmix's repository, so name the file in a clone of it"


class _Files:
    """The run files of one command. Each is read once; what `extends` multiplies is bounded."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Any]] = {}
        self._merged = 0
        self._bytes_left = MOST_BYTES

    def read_into(self, settings: Settings, path: str, above: tuple[str, ...]) -> None:
        """Merge what a file extends, then the file itself. `above`: the files that extend it, the first one first."""
        if os.path.isdir(path):
            path = os.path.join(path, "config.yaml")
        if not os.path.isfile(path):
            note = f" (extended by {above[-1]})" if above else _where_else(path)
            what = "is no regular file" if os.path.exists(path) else "does not exist"
            raise UserError(f"run file {path} {what}{note}")
        real = os.path.realpath(path)
        if real in above:
            raise UserError(f"{path}: `extends` runs in a circle: {' -> '.join([*above, real])}")
        self._merged += 1
        if self._merged > MOST_FILES:
            first = above[0] if above else path
            raise UserError(
                f"{first}: with all that `extends` names, and names again, these are more than {MOST_FILES} files: let "
                "each be extended once"
            )
        if real not in self._values:
            self._values[real] = self._read(path)
        values = dict(self._values[real])
        extended = values.pop("extends", [])
        extended = [extended] if isinstance(extended, str) else extended
        if not isinstance(extended, list) or not all(isinstance(entry, str) for entry in extended):
            raise UserError(f"{path}: extends takes a file name or a list of them, relative to this file")
        for entry in extended:
            self.read_into(settings, os.path.join(os.path.dirname(path), entry), (*above, real))
        settings.merge(values, path)
        settings.last = path

    def _read(self, path: str) -> dict[str, Any]:
        try:
            with open(path, "rb") as file:
                data = file.read(self._bytes_left + 1)
        except OSError as error:
            raise UserError(f"run file {path} cannot be read: {error.strerror}") from None
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise UserError(
                f"{path}: too large: all run files of a command may hold {MOST_BYTES // 2**20} MiB together, and a few "
                "KiB are enough for any settings"
            )
        try:
            values = parse_yaml(data.decode(), path)
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text, so not a run file") from None
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise UserError(f"{path}: a run file is a map of sections, but this is a {type(values).__name__}")
        return values
