"""What every test may ask for."""

import os

import pytest


@pytest.fixture(scope="session")
def require_or_skip():
    """require_or_skip(name, reason): skip the test, or fail it where LONGMIX_REQUIRE (slurm,compiler) has the name."""

    def decide(name: str, reason: str):
        if name in os.environ.get("LONGMIX_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required (LONGMIX_REQUIRE), but {reason}", pytrace=False)
        pytest.skip(f"{name}: {reason}")

    return decide
