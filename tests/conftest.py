"""What every test may ask for, and what holds for all of them."""

import os

import pytest

# Before torch is imported anywhere. One thread: several processes of a test share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def require_or_skip():
    """require_or_skip(name, reason): skip the test, or fail it where LONGMIX_REQUIRE (slurm,compiler) has the name."""

    def decide(name: str, reason: str):
        if name in os.environ.get("LONGMIX_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required (LONGMIX_REQUIRE), but {reason}", pytrace=False)
        pytest.skip(f"{name}: {reason}")

    return decide
