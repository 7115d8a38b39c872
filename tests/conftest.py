"""What every test may ask for, and what holds for all of them."""

import argparse
import importlib
import importlib.util
import os
import random
import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

# Before torch is imported anywhere. One thread: several processes of a test share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

if not torch.cuda.is_available():
    # Before anything imports Triton, which decides then how kernels run, its own small functions too.
    os.environ.setdefault("TRITON_INTERPRET", "1")

BENCHMARKS = Path(__file__).parent / "benchmarks"


def pytest_addoption(parser):
    # Here, for pytest asks only the conftest files it meets first.
    parser.addoption(
        "--fault-seed",
        type=int,
        default=random.randrange(10**6),
        metavar="N",
        help="draw the moments at which tests/faults kills from this seed (default: another one each time)",
    )
    parser.addoption("--fuzz-cases", type=int, default=0, metavar="N", help="make N cases of tests/fuzz, not a few")
    parser.addoption("--fuzz-seed", type=int, default=1, metavar="N", help="of the cases of tests/fuzz (default: 1)")
    parser.addoption("--fuzz-record", metavar="FILE", help="note what is done of them there; given again, go on")
    parser.addoption("--full", action="store_true", help="run what is marked full, too, as continuous integration does")
    parser.addoption(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="I/N",
        help="with --full: of its grids and of tests/benchmarks only the Ith of N parts (default: 1/1, all of them)",
    )


def _part(text):
    """'2/3' -> (2, 3)."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: I/N, whole numbers with 1 <= I <= N")
    return int(index), int(count)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What a test draws does not depend on the tests before it, nor on the moment."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:
        # Without the notes of this stack that torch.manual_seed takes for each kind of device that is not there.
        torch.default_generator.manual_seed(0)


def pytest_report_header(config):
    return f"fault seed: {config.getoption('fault_seed')}"


def pytest_collection_modifyitems(config, items):
    """Leave out what is marked full, unless it is asked for or its turn; the files that take longest first."""
    expression = config.getoption("markexpr")
    is_asked_for = config.getoption("full") or "full" in expression or "fuzz" in expression
    part, parts = config.getoption("part")

    def is_wanted(item):
        # What is marked faults has a part of its own, in which it is wanted.
        if not item.get_closest_marker("full") or item.get_closest_marker("faults"):
            return True
        takes_turns = hasattr(item, "callspec") or BENCHMARKS in item.path.parents
        return is_asked_for and (not takes_turns or zlib.crc32(item.nodeid.encode()) % parts == part - 1)

    # Whoever names a test gets it.
    if not any("::" in argument for argument in config.args):
        config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
        items[:] = [item for item in items if is_wanted(item)]
    # One that began last would keep a worker busy after all others are done.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker makes all tests of a file, for they share fixtures that are costly; and those of tests/slurm, which
    share a cluster."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "tests/slurm" if nodeid.startswith("tests/slurm/") else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter):
    """What a test has recorded for whoever reads the results (record_property("summary", text))."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, text in report.user_properties if report.when == "call" else ():
            if name == "summary":
                terminalreporter.write_line(text)


@pytest.fixture(autouse=True)
def _kernels_stay_chosen():
    """A test that chooses kernels takes its choice back: later ones of its process would run others than they name."""
    before = os.environ.get("LONGMIX_KERNELS")
    yield
    assert os.environ.get("LONGMIX_KERNELS") == before, "use monkeypatch.setenv"


@pytest.fixture(scope="session")
def require_or_skip():
    """require_or_skip(name, reason): skip the test, or fail it where LONGMIX_REQUIRE has the name.

    It holds some of slurm, compiler, triton, onnx, wandb, mount and netns, with commas between them.
    """

    def decide(name: str, reason: str):
        if name in os.environ.get("LONGMIX_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required (LONGMIX_REQUIRE), but {reason}", pytrace=False)
        pytest.skip(f"{name}: {reason}")

    return decide


@pytest.fixture(scope="session")
def triton(require_or_skip):
    """The package Triton, for tests that run, compile or count its kernels."""
    if importlib.util.find_spec("triton") is None:
        require_or_skip("triton", "triton is not installed")
    return importlib.import_module("triton")


@pytest.fixture
def poisoned_memory():
    """Memory that is allocated and that nobody writes holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def count_elements():
    """with count_elements() as count: count.total is the number of elements of all tensors made since, count.largest
    that of the largest one: work and memory without a clock."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        total = largest = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for made in result if isinstance(result, (tuple, list)) else (result,):
                if hasattr(made, "numel") and not function.is_view:
                    self.total += made.numel()
                    self.largest = max(self.largest, made.numel())
            return result

    return Count


@pytest.fixture(scope="session")
def stand_in():
    """card.py: a device of type cuda on machines without one, which notes where the host waits and what is narrow."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "card.py")))


@pytest.fixture(scope="session")
def contents():
    """contents(folder) -> every path below a folder, with the bytes of files and the targets of links."""

    def read(path):
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return lambda folder: {path.relative_to(folder).as_posix(): read(path) for path in sorted(folder.rglob("*"))}
