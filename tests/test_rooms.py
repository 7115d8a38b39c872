"""The rooms of the code: imports run one way, in no circle, and no folder holds more files than a reader looks over."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("configs", "data_prep", "kernels", "modeling", "trainer")
MOST_FILES = 20
# In a process of its own: it changes the logging of the one that it runs in.
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def test_imports_run_one_way_and_in_no_circle(tmp_path):
    """The contracts of pyproject.toml; where one is broken, import-linter shows the imports."""
    # An editable install hides from it the folders without an __init__.py.
    (tmp_path / "longmix").mkdir()
    for top in TOPS:
        (tmp_path / "longmix" / top).symlink_to(ROOT / top, target_is_directory=True)
    command = [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "Contracts: 6 kept, 0 broken" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 0


def test_the_page_has_the_rooms_in_their_order():
    """CONTRIBUTING.md, of what pyproject.toml enforces."""
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    rows = [re.match(r"\| (\d+) \| `(\w+)/` \|", line) for line in lines]
    told = {row[2]: int(row[1]) for row in rows if row}
    rooms = {room: number for room, number in heights().items() if (ROOT / "trainer" / room).is_dir()}
    first = min(rooms.values())
    assert told == {room: 1 + number - first for room, number in rooms.items()} and len(told) > 10


def heights():
    """Room of the trainer, or module above them -> its place from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["longmix.trainer"])
    return {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}


def test_names_of_modules_in_texts_follow_the_arrows_too():
    """Imports by name, which the contracts do not see; the rows of settings alone name what stands above them."""
    height = heights()
    rows = [ROOT / "trainer" / "settings" / f"{name}.py" for name in ("objectives", "optimizers")]
    found = set()
    for path in (ROOT / "trainer").rglob("*.py"):
        room = path.relative_to(ROOT / "trainer").with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Constant) and re.match(r"longmix\.trainer\.(\w+)[\w.:]*$", str(node.value))
            if named and height[named[1]] < height.get(room, -1) and path not in rows:
                found.add(f"{path.relative_to(ROOT)} names {node.value}")
    assert not found and rows[0].is_file() and rows[1].is_file()


@pytest.mark.parametrize("top", [*TOPS, "benchmarks"])
def test_no_folder_holds_too_many_files(top):
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*.py"))
    assert folders and not {folder: count for folder, count in folders.items() if count > MOST_FILES}
