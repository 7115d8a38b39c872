"""Replay tests/mutants.md: break each promise in a copy of the repository, and see its test fail.

`python tests/replay_mutants.py [WORD ...]` replays the mutants whose headings hold one of the words (default: all), and
prints a table, which says for each whether ./test catches it, ./test --full, or ./test -m faults. Exit code 1 if a
mutant survives, 2 if an entry no longer fits the code. Each is replayed in a process forked from one that has imported
what is not ours.
"""

import argparse
import contextlib
import gc
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "data_prep", "kernels", "modeling", "trainer")
# What takes seconds to import and is not ours; also what DeepSpeed, pyarrow and transformers import when they are used.
IMPORTED_ONCE = (
    "accelerate",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "hypothesis",
    "pandas",
    "pyarrow.parquet",
    "transformers.conversion_mapping",
    "transformers.loss.loss_utils",
    "transformers.models.auto.modeling_auto",
)
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
    """The entries of mutants.md, in order, one or more under each heading.

    Raises:
        ValueError: one is without a file, a test or a change.
    """
    mutants, promise = [], ""
    for heading, block in re.findall(r"^### (.+?)$|^```mutant\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if heading:
            promise = heading
            continue
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


class Watcher:
    """A plugin of pytest that runs what ./test runs before what is marked full, and notes in which of the two parts a
    test has failed: "default" or "full"; "faults" for what neither of them makes."""

    def __init__(self):
        self.part: str | None = None
        self._full: set[str] = set()
        self._faults: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        self._full = {item.nodeid for item in items if item.get_closest_marker("full")}
        self._faults = {item.nodeid for item in items if item.get_closest_marker("faults")}
        items.sort(key=lambda item: (item.nodeid in self._faults, item.nodeid in self._full))

    def pytest_runtest_logreport(self, report):
        if report.failed and self.part is None:
            rare = "full" if report.nodeid in self._full else "default"
            self.part = "faults" if report.nodeid in self._faults else rare


def import_once() -> None:
    """Import what is not ours, for the processes that are forked from this one."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    # It settles the environment in which torch and Triton are imported.
    specification = importlib.util.spec_from_file_location("settings_of_tests", ROOT / "tests" / "conftest.py")
    specification.loader.exec_module(importlib.util.module_from_spec(specification))
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "longmix" for name in sys.modules)
    gc.freeze()


def use_copy(folder: Path) -> None:
    """Let this process, and those that it starts, import the copy in `folder` in place of what is installed."""
    outside = {str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [str(folder), str(folder / ".replay"), *(path for path in sys.path if path not in outside)]
    os.environ["PYTHONPATH"] = str(folder / ".replay")
    os.chdir(folder)
    importlib.invalidate_caches()
    for name in PACKAGES[1:]:
        specification = importlib.util.find_spec(f"longmix.{name}")
        places = specification.submodule_search_locations if specification else []
        assert places and Path(places[0]).resolve() == folder / name, f"longmix.{name} is not the copy's"


def judge(folder: Path, mutant: Mutant | None, tests: list[str]) -> str:
    """What becomes of tests in a copy with the mutant: killed default, killed full, killed faults, SURVIVED, or why
    the entry does not fit. For a process of its own."""
    copy_repository(folder)
    if mutant is not None:
        path = folder / mutant.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(mutant.old) != 1:
            return f"STALE: the text stands {text.count(mutant.old)} times in {mutant.file}"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        if path.suffix == ".py":
            compile(path.read_text(encoding="utf-8"), mutant.file, "exec")
    use_copy(folder)
    watcher = Watcher()
    # Whatever its marks: a test that only `./test -m faults` makes is named here like any other.
    code = pytest.main(["-q", "-x", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[watcher])
    if code == FAILED:
        # An error while the tests are collected proves nothing.
        return f"killed {watcher.part}" if watcher.part else "STALE: no test failed"
    return "SURVIVED" if code == PASSED else f"STALE: pytest ended with {int(code)}"


class Attempt:
    """`judge` in a forked process."""

    def __init__(self, mutant: Mutant | None, tests: list[str]):
        self.began = time.monotonic()
        self._temporary = tempfile.TemporaryDirectory(prefix="mutant-")
        folder = Path(self._temporary.name).resolve()
        self._verdict, self._output = folder / "verdict", folder / "output"
        self._process = os.fork()
        if self._process == 0:
            self._judge(folder / "copy", mutant, tests)

    def _judge(self, folder: Path, mutant: Mutant | None, tests: list[str]) -> None:
        """In the child: it never returns."""
        try:
            os.setsid()
            with open(self._output, "wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            folder.mkdir()
            self._verdict.write_text(judge(folder, mutant, tests), encoding="utf-8")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def result(self) -> tuple[str, float, str] | None:
        """(verdict, seconds, output) once it has ended, else None."""
        seconds = time.monotonic() - self.began
        is_too_long = seconds > LONGEST_SECONDS
        if os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and not is_too_long:
            return None
        # With whatever the tests have left running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        _, status = os.waitpid(self._process, 0)
        output = self._output.read_text(encoding="utf-8", errors="replace") if self._output.exists() else ""
        if self._verdict.exists():
            verdict = self._verdict.read_text(encoding="utf-8")
        elif is_too_long:
            verdict = "killed default (ran too long)"
        else:
            verdict = f"STALE: pytest ended with {os.waitstatus_to_exitcode(status)}"
        self._temporary.cleanup()
        return verdict, seconds, output


def side_by_side(works: list[tuple[Mutant | None, list[str]]], jobs: int) -> Iterator[tuple[str, float, str]]:
    """(verdict, seconds, output) of each work in turn, `jobs` of them at a time."""
    waiting, running, done = list(enumerate(works)), {}, {}
    for number in range(len(works)):
        while number not in done:
            while waiting and len(running) < jobs:
                next_number, work = waiting.pop(0)
                running[next_number] = Attempt(*work)
            for other, attempt in list(running.items()):
                result = attempt.result()
                if result is not None:
                    done[other] = result
                    del running[other]
            time.sleep(0.02)
        yield done.pop(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="replay the mutants whose headings hold one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    arguments = parser.parse_args()
    jobs = max(1, arguments.jobs)
    mutants = parse((ROOT / "tests" / "mutants.md").read_text(encoding="utf-8"))
    words = [word.lower() for word in arguments.words]
    chosen = [mutant for mutant in mutants if not words or any(word in mutant.promise.lower() for word in words)]
    import_once()
    # Without a mutant first, the tests of a file together.
    tests: dict[str, set[str]] = {}
    for mutant in chosen:
        tests.setdefault(mutant.test.partition("::")[0], set()).add(mutant.test)
    for verdict, _, output in side_by_side([(None, sorted(of_file)) for of_file in tests.values()], jobs):
        if verdict != "SURVIVED":
            print(f"the tests do not pass on the code as it is:\n{output}\n{verdict}", file=sys.stderr)
            return 2
    verdicts = []
    results = side_by_side([(mutant, [mutant.test]) for mutant in chosen], jobs)
    for mutant, (verdict, seconds, _) in zip(chosen, results, strict=True):
        verdicts.append(verdict)
        print(f"{verdict:<14} {seconds:5.0f} s  {mutant.promise}  ({mutant.test.rpartition('::')[2]})", flush=True)
    killed = sum(verdict.startswith("killed") for verdict in verdicts)
    full, faults = verdicts.count("killed full"), verdicts.count("killed faults")
    print(
        f"{killed} of {len(verdicts)} mutants killed, {killed - full - faults} by ./test, {full} by ./test --full "
        f"alone and {faults} by ./test -m faults alone"
    )
    if any(verdict.startswith("STALE") for verdict in verdicts):
        return 2
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
