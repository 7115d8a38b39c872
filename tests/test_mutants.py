"""tests/mutants.md fits the code; `python tests/replay_mutants.py` replays it."""

import importlib.util
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
    assert len(MUTANTS) == TEXT.count("\n### ") >= 20
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
