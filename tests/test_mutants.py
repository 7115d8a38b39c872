"""tests/mutants.md fits the code; `python tests/replay_mutants.py` replays it."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_script():
    specification = importlib.util.spec_from_file_location("replay_mutants", ROOT / "tests" / "replay_mutants.py")
    script = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = script
    specification.loader.exec_module(script)
    return script


SCRIPT = load_script()
TEXT = (ROOT / "tests" / "mutants.md").read_text(encoding="utf-8")
MUTANTS = SCRIPT.parse(TEXT)


def test_every_entry_is_read():
    assert len(MUTANTS) == TEXT.count("\n```mutant\n") >= 20
    assert {mutant.promise for mutant in MUTANTS} == set(re.findall(r"^### (.+)$", TEXT, re.MULTILINE))
    with pytest.raises(ValueError, match="needs file, test, and lines"):
        SCRIPT.parse("### Nothing\n\n```mutant\nfile: a.py\n-x\n```\n")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.promise)
def test_every_entry_fits_the_code(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1 and mutant.new not in ("", mutant.old)
    if mutant.file.endswith(".py"):
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    path, name = mutant.test.split("::")
    assert f"def {name.split('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_promise_about_reliability_has_an_entry():
    """Of the tests that a row of docs/reliability.md names, an entry breaks what at least one checks."""
    broken = {mutant.test.split("[")[0] for mutant in MUTANTS}
    broken |= {test.partition("::")[0] for test in broken}
    rows = 0
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines():
        path, tests = None, []
        for file, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", line if line.startswith("|") else ""):
            path = file or path
            tests += [f"{path}::{test}" if test else path] if file or test else []
        rows += bool(tests)
        assert not tests or broken & set(tests), line
    assert rows > 50
