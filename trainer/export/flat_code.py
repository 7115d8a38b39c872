"""Modules of this package as flat files, in the form in which transformers finds and loads code beside weights.

transformers follows lines `from .name import ...` and no others, from file to file in one folder. So each module
becomes a file of that folder; its import statements change, every other byte stays.
"""

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "longmix"
LICENCE = "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0"
_FIRST_WORDS = f"# Part of {PACKAGE}"


@dataclass(frozen=True)
class Module:
    """A module's text, parsed but not run."""

    name: str
    source: str
    tree: ast.Module
    is_package: bool

    def imports(self) -> Iterator[ast.Import | ast.ImportFrom]:
        """Every import statement, also those within functions."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom))

    def imported_from(self, statement: ast.ImportFrom) -> str:
        """The full name of the module that stands behind `from`."""
        package = self.name if self.is_package else self.name.rpartition(".")[0]
        return importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)

    def only_passes_on(self) -> bool:
        """Whether it only imports names of this package for others to import: such a file is not needed."""
        return all(
            (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.ImportFrom) and _is_ours(self.imported_from(node)))
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
            for node in self.tree.body
        )


def flat_name(module: str) -> str:
    """Name of the flat file, without .py: longmix.kernels.link_mix.portable -> kernels_link_mix_portable.

    Modules of `modeling` go without that word, and those that bear their folder's name without the folder:
    longmix.modeling.flt.modeling_flt -> modeling_flt.
    """
    parts = module.split(".")[1:]
    if parts[0] == "modeling" and len(parts) > 1:
        parts = parts[1:]
    if len(parts) > 1 and parts[-1].endswith(f"_{parts[-2]}"):
        parts = parts[-1:]
    return "_".join(parts)


class FlatCode:
    """The code of this package that the modules `roots` need.

    Attributes:
        files: text by file name.
        requirements: names of the modules of other packages, the standard library aside.
    """

    def __init__(self, roots: Iterable[str]):
        self.files: dict[str, str] = {}
        self.requirements: set[str] = set()
        self._written: set[str] = set()
        # Modules that are used as objects though they only pass names on: which of their names.
        self._passed_on: dict[str, set[str]] = {}
        self._waiting = list(roots)
        while self._waiting:
            name = self._waiting.pop()
            if name not in self._written:
                self._write(name, self._flat_text(_read(name)))
        for name, attributes in self._passed_on.items():
            lines = "\n".join(
                _flat_import(*_definition(name, attribute), attribute) for attribute in sorted(attributes)
            )
            self._write(name, f'"""What this model uses of {name}."""\n\n{lines}\n')

    def _write(self, module: str, text: str) -> None:
        file = f"{flat_name(module)}.py"
        if file in self.files:
            raise ValueError(f"{module} and another module would both become {file}: give one another name")
        self._written.add(module)
        self.files[file] = _header(module) + text

    def _flat_text(self, module: Module) -> str:
        text = module.source.encode()
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in sorted(module.imports(), key=lambda node: (node.lineno, node.col_offset), reverse=True):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            statement = self._flat_statement(module, node, text[begin:end].decode())
            text = text[:begin] + statement.encode() + text[end:]
        return text.decode()

    def _flat_statement(self, module: Module, node: ast.Import | ast.ImportFrom, text: str) -> str:
        """An import statement as it stands in the flat file."""
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            if any(map(_is_ours, modules)):
                raise ValueError(f"{module.name}, line {node.lineno}: write {text!r} with from")
            self._require(modules)
            return text
        source = module.imported_from(node)
        if not _is_ours(source):
            self._require([source])
            return text
        targets = [(*_definition(source, alias.name), alias.asname or alias.name) for alias in node.names]
        for place, name, bound in targets:
            self._need(module, place, name, bound)
        places = {place for place, _, _ in targets}
        if len(places) == 1 and [name for _, name, _ in targets] == [alias.name for alias in node.names]:
            # The list of names stays as it is, with its line breaks.
            return re.sub(r"^from\s+\S+", f"from .{flat_name(*places)}", text)
        lines = "\n".join(_flat_import(*target) for target in targets)
        return lines.replace("\n", "\n" + " " * node.col_offset)

    def _need(self, module: Module, place: str, name: str | None, bound: str) -> None:
        """Queue the code that `module` imports: `name` of the module `place`, or (None) that module, as `bound`."""
        if name is None and _read(place).only_passes_on():
            attributes = _attributes(module, bound)
            self._passed_on.setdefault(place, set()).update(attributes)
            self._waiting += [_definition(place, attribute)[0] for attribute in attributes]
        else:
            self._waiting.append(place)

    def _require(self, modules: Iterable[str]) -> None:
        tops = {name.partition(".")[0] for name in modules}
        self.requirements |= tops - set(sys.stdlib_module_names)


# Reading modules: their text alone says what they import and pass on; nothing is run.


def is_flat_file(path: Path) -> bool:
    """Whether an export wrote this file."""
    if path.suffix != ".py":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(_FIRST_WORDS)) == _FIRST_WORDS


def _header(module: str) -> str:
    version = importlib.metadata.version(PACKAGE)
    return f"{_FIRST_WORDS} {version}, {module}. {LICENCE}.\n# Changed by longmix export: its imports.\n"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@cache
def _read(name: str) -> Module:
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text(encoding="utf-8")
    return Module(name, source, ast.parse(source), spec.submodule_search_locations is not None)


def _definition(module: str, name: str) -> tuple[str, str | None]:
    """(module, name) where `name` of `module` is defined, whoever passes it on; (module, None) if it is a module."""
    if _has_module(f"{module}.{name}"):
        return f"{module}.{name}", None
    passing = _read(module)
    for node in passing.tree.body:
        if isinstance(node, ast.ImportFrom) and _is_ours(passing.imported_from(node)):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _definition(passing.imported_from(node), alias.name)
    return module, name


def _flat_import(place: str, name: str | None, bound: str) -> str:
    """The import of `name` from the flat file of the module `place`, or (None) of that module, as `bound`."""
    flat = flat_name(place)
    if name is None:
        return f"from .{flat} import __name__ as _  # a form that transformers follows\nfrom . import {flat} as {bound}"
    return f"from .{flat} import {name}" + ("" if bound == name else f" as {bound}")


def _attributes(module: Module, name: str) -> set[str]:
    """The attributes of the imported module `name` that are used; a use of another kind is refused."""
    attributes = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    ]
    uses = [node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == name]
    if len(uses) != len(attributes):
        raise ValueError(f"{module.name} uses {name} otherwise than as {name}.NAME: what it needs cannot be told")
    return {node.attr for node in attributes}
