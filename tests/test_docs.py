"""The documents: their Python runs as it stands there, their links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# Pages whose examples take five seconds and more.
LONG_PAGES = ("mixers.md",)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.full if page.name in LONG_PAGES else [], id=name_of(page))
        for page in PAGES
        if snippets(page)
    ],
)
def test_the_python_of_a_page_runs(page, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(snippets(page))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in LONG_PAGES], ids=name_of)
def test_the_python_of_a_long_page_compiles(page):
    compile("\n".join(snippets(page)), name_of(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_links_is_there(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_is_there(page):
    path = None
    for name, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        if not name and not test:
            continue
        path = name or path
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path} has no {test}"
