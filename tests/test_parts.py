"""./test --full --part I/N: the parts of what is marked full are all of it; what belongs to every part is in each."""

import os
import subprocess
import sys

import pytest

MADE = """
import pytest

@pytest.mark.full
@pytest.mark.parametrize("number", range(20))
def test_grid(number): pass

@pytest.mark.full
def test_whole(): pass

def test_quick(): pass
"""


@pytest.fixture(scope="module")
def collected(pytestconfig, tmp_path_factory):
    """collected(options) -> the tests that are made of MADE, in tests/ and in tests/benchmarks/."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "benchmarks").mkdir()
    for place in (folder, folder / "benchmarks"):
        (place / f"test_{place.name.replace('-', '_')}.py").write_text(MADE)
    (folder / "conftest.py").write_text((pytestconfig.rootpath / "tests" / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    full\n    faults\n    slow\n")

    def collect(*options):
        command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-q", "--collect-only", "-n", "0", *options]
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
        assert done.returncode in (0, 4), done.stdout + done.stderr
        return {line for line in done.stdout.splitlines() if "::" in line} if done.returncode == 0 else done.stderr

    return collect


def test_parts_are_disjoint_and_together_all(collected):
    quick, whole = collected(), collected("--full")
    one, other = collected("--full", "--part", "1/2"), collected("--full", "--part", "2/2")
    assert len(quick) == 2 and len(whole) == 2 * 22
    assert one | other == whole
    in_both = {test for test in whole if test.endswith("::test_quick")}
    in_both |= {test for test in whole if test.endswith("::test_whole") and not test.startswith("benchmarks/")}
    assert one & other == in_both
    assert all(10 < len(part) < 35 for part in (one, other))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "one/two"])
def test_no_other_part_is_taken(collected, part):
    assert "allowed: I/N, whole numbers with 1 <= I <= N" in collected("--full", "--part", part)
