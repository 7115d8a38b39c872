"""The rooms of the code: imports run one way, in no circle, and no folder holds more files than a reader looks over."""

import os
import subprocess
import sys
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
    assert "Contracts: 5 kept, 0 broken" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("top", [*TOPS, "benchmarks"])
def test_no_folder_holds_too_many_files(top):
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*.py"))
    assert folders and not {folder: count for folder, count in folders.items() if count > MOST_FILES}
