"""The rooms of the code: imports run one way, in no circle, and no folder holds more files than a reader looks over."""

from collections import Counter
from pathlib import Path

import importlinter.cli
import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES = 20


def test_imports_run_one_way_and_in_no_circle(capsys):
    """The contracts of pyproject.toml; where one is broken, import-linter shows the imports."""
    code = importlinter.cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    told = capsys.readouterr().out
    assert "Contracts: 5 kept, 0 broken" in told, told
    assert code == importlinter.cli.EXIT_STATUS_SUCCESS


@pytest.mark.parametrize("top", ["configs", "data_prep", "kernels", "modeling", "trainer"])
def test_no_folder_holds_too_many_files(top):
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*.py"))
    assert folders and not {folder: count for folder, count in folders.items() if count > MOST_FILES}
