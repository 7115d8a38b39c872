"""Every operation with its cases and its implementations."""

import importlib.util
import math
from pathlib import Path

import pytest

from longmix.kernels.selection import obstacle

FOLDER = Path(__file__).parent / "cases"


def load_cases(path):
    """The module of one file in cases/."""
    spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = [load_cases(path) for path in sorted(FOLDER.glob("*.py"))]
CASES = {f"{module.OPERATION}-{name}": (module, name) for module in MODULES for name in module.CASES}
# Thousands of rows take the references seconds, and go through the same blocks as hundreds.
LONG = ("long", "long-fixed")
# What costs Triton's interpreter the most of an operation whose other cases have ragged rows, documents, permutations
# and both orders of numbers, too. The other implementations take them in no time.
LONG_IN_TRITON = {
    "givens_mix-planes",
    "givens_mix-prime",
    "givens_mix-several-blocks",
    "near_attention-prime",
    "random_feature_attention-documents-of-heads",
    "random_feature_attention-prime",
    "random_feature_attention-waves-of-heads",
    "token_givens_mix-documents",
    "token_givens_mix-three",
    "token_givens_mix-two",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is full by its implementation and its case; before such tests are left out."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("name") == "triton" and parameters.get("case") in LONG_IN_TRITON:
            item.add_marker(pytest.mark.full)


@pytest.fixture(params=[pytest.param(key, marks=[pytest.mark.full] * (CASES[key][1] in LONG)) for key in CASES])
def case(request):
    """(module of cases/, name of the case) of every case in turn."""
    return CASES[request.param]


@pytest.fixture(scope="session")
def cases():
    """(module of cases/, name of the case) of all cases."""
    return list(CASES.values())


@pytest.fixture
def choose_implementation(monkeypatch, require_or_skip):
    """choose_implementation(operation, name): from now on it runs so, if what it needs is there."""
    needs = {"cpu": "compiler", "triton": "triton"}

    def choose(operation, name):
        if name in needs and (reason := obstacle(operation, name, "cpu")):
            require_or_skip(needs[name], reason)
        monkeypatch.setenv("LONGMIX_KERNELS", name)

    return choose


@pytest.fixture(scope="session")
def relative_rms():
    """relative_rms(value, truth) -> |value - truth| / |truth| of tensors of one shape.

    A truth that is zero, or empty, would prove little: it is beyond every bound. With `absolute_at_zero` it is for
    cases whose gradients may be zero, of which rounding leaves something: |value| counts then.
    """

    def compare(value, truth, absolute_at_zero=False):
        assert value.shape == truth.shape
        error, size = (value.double() - truth.double()).norm().item(), truth.double().norm().item()
        if size == 0:
            return error if absolute_at_zero else math.inf
        return error / size

    return compare
