"""What every test may ask for, and what holds for all of them."""

import os
import random

import pytest

# Before torch is imported anywhere. One thread: several processes of a test share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

if not torch.cuda.is_available():
    # Before anything imports Triton, which decides then how kernels run, its own small functions too.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser):
    # Here, for pytest asks only the conftest files it meets first.
    parser.addoption(
        "--fault-seed",
        type=int,
        default=random.randrange(10**6),
        metavar="N",
        help="draw the moments at which tests/faults kills from this seed (default: another one each time)",
    )


def pytest_report_header(config):
    return f"fault seed: {config.getoption('fault_seed')}"


@pytest.fixture(scope="session")
def require_or_skip():
    """require_or_skip(name, reason): skip the test, or fail it where LONGMIX_REQUIRE has the name.

    It holds some of slurm, compiler, triton, mount and netns, with commas between them.
    """

    def decide(name: str, reason: str):
        if name in os.environ.get("LONGMIX_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required (LONGMIX_REQUIRE), but {reason}", pytrace=False)
        pytest.skip(f"{name}: {reason}")

    return decide


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
