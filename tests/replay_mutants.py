"""Replay tests/mutants.md: break each promise in a copy of the repository, and see its test fail.

`python tests/replay_mutants.py [WORD ...]` replays the mutants whose headings hold one of the words (default: all), and
prints a table. Exit code 1 if a mutant survives, 2 if an entry no longer fits the code.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "data_prep", "kernels", "modeling", "trainer")
# pytest's exit codes.
PASSED, FAILED = 0, 1
# A mutant may run in circles.
LONGEST_SECONDS = 600


@dataclass
class Mutant:
    """One entry: in `file`, `old` becomes `new`, and `test` must fail."""

    promise: str
    file: str
    test: str
    old: str
    new: str


def parse(text: str) -> list[Mutant]:
    """The entries of mutants.md, in order. Raises ValueError for one without a file, a test or a change."""
    mutants = []
    for promise, block in re.findall(r"^### (.+?)\n+```mutant\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        fields = dict(line.split(": ", 1) for line in lines if line.startswith(("file: ", "test: ")))
        old = "\n".join(line[1:] for line in lines if line.startswith("-"))
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        if set(fields) != {"file", "test"} or not old or not new:
            raise ValueError(f"mutants.md, {promise}: needs file, test, and lines with - and +")
        mutants.append(Mutant(promise, fields["file"], fields["test"], old, new))
    return mutants


def copy_repository(folder: Path) -> None:
    """Every tracked file as it is in the working tree, and `longmix` on a path of its own, pointing at the copy."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    packages = folder / ".replay" / "longmix"
    packages.mkdir(parents=True)
    for name in PACKAGES:
        (packages / name).symlink_to(folder / name, target_is_directory=True)


def run_tests(folder: Path, tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output, with the copy in `folder` imported in place of what is installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder / ".replay"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return FAILED, "FAILED tests/: ran too long"
    return result.returncode, result.stdout + result.stderr


def imported_from(folder: Path) -> bool:
    """Whether the copy is what Python imports there."""
    code = "import longmix.trainer.run.loop as a, longmix.modeling as b; print(a.__file__, b.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(folder / ".replay")}
    result = subprocess.run([sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True)
    return result.returncode == 0 and result.stdout.count(str(folder)) == 2


def replay(mutant: Mutant) -> tuple[str, float]:
    """(verdict, seconds): killed, SURVIVED, or why the entry does not fit."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary).resolve()
        copy_repository(folder)
        path = folder / mutant.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(mutant.old) != 1:
            return f"STALE: the text stands {text.count(mutant.old)} times in {mutant.file}", 0.0
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        if path.suffix == ".py":
            compile(path.read_text(encoding="utf-8"), mutant.file, "exec")
        code, output = run_tests(folder, [mutant.test])
    verdict = {PASSED: "SURVIVED", FAILED: "killed"}.get(code, f"STALE: pytest ended with {code}")
    # An error while the tests are collected, or in a fixture of another kind, proves nothing.
    if code == FAILED and not re.search(r"^(FAILED|ERROR) tests/", output, re.MULTILINE):
        verdict = "STALE: no test failed"
    return verdict, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="replay the mutants whose headings hold one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    arguments = parser.parse_args()
    mutants = parse((ROOT / "tests" / "mutants.md").read_text(encoding="utf-8"))
    words = [word.lower() for word in arguments.words]
    chosen = [mutant for mutant in mutants if not words or any(word in mutant.promise.lower() for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary).resolve()
        copy_repository(folder)
        if not imported_from(folder):
            print("the copy is not what Python imports there: nothing can be replayed", file=sys.stderr)
            return 2
        code, output = run_tests(folder, sorted({mutant.test for mutant in chosen}))
        if code != PASSED:
            print(f"the tests do not pass on the code as it is:\n{output}", file=sys.stderr)
            return 2
    verdicts = []
    with ThreadPoolExecutor(max(1, arguments.jobs)) as executor:
        for mutant, (verdict, seconds) in zip(chosen, executor.map(replay, chosen), strict=True):
            verdicts.append(verdict)
            print(f"{verdict:<9} {seconds:5.0f} s  {mutant.promise}  ({mutant.test.rpartition('::')[2]})", flush=True)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(verdicts)} mutants killed")
    if any(verdict.startswith("STALE") for verdict in verdicts):
        return 2
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
