"""The scripts of benchmarks/, importable by their names."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def script():
    """script(name) -> the module benchmarks/NAME.py."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def setting(script, tmp_path):
    """The GPU kit's, of a trial."""
    return script("gpu_kit.setting").Setting(tmp_path, "cpu", "NVIDIA H100 80GB HBM3", 1, (9, 0), True, None)
