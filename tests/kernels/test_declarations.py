"""Declarations of the C++ functions: the types that they have, checked at every call."""

import ctypes
import importlib
import re

import pytest
import torch

from longmix.kernels import build
from longmix.kernels.selection import AROUND_MIXERS, OPERATIONS

KINDS = {
    "REAL*": build.REALS,
    "WIDE_REAL*": build.WIDE_REALS,
    "double*": build.DOUBLES,
    "int64_t*": build.INTEGERS,
    "int64_t": build.SIZE,
}
FOLDERS = sorted(
    folder for folder in {*OPERATIONS.values(), *AROUND_MIXERS.values()} if (build.FOLDER / folder / "cpu.cpp").exists()
)
FUNCTIONS = {
    f"{folder}-{name}": function
    for folder in FOLDERS
    for name, function in importlib.import_module(f"longmix.kernels.{folder}.cpu_kernels").FUNCTIONS.items()
}


def exported():
    """(C++ file, function) -> the types of its arguments, of all that the sources export."""
    found = {}
    for path in build.FOLDER.rglob("*.cpp"):
        for name, arguments in re.findall(r'extern "C" void longmix_(\w+)\((.*?)\)', path.read_text(), re.DOTALL):
            types = [re.sub(r"\bconst\b|\s|\w+$", "", argument.strip()) for argument in arguments.split(",")]
            found[path.relative_to(build.FOLDER).as_posix(), name] = [KINDS[kind] for kind in types]
    return found


def test_every_exported_function_is_declared_as_it_is():
    assert {(function.source, function.part): [*function.types, build.SIZE] for function in FUNCTIONS.values()} == (
        exported()
    )


@pytest.fixture(params=FUNCTIONS)
def function(request, require_or_skip):
    if reason := FUNCTIONS[request.param].obstacle():
        require_or_skip("compiler", reason)
    return FUNCTIONS[request.param]


def test_every_function_that_is_called_has_argument_types(function):
    loaded = function.load(torch.float32)
    assert loaded.argtypes == [
        build.POINTERS[torch.float32] if kind in (build.REALS, build.WIDE_REALS) else kind
        for kind in exported()[function.source, function.part]
    ]
    assert loaded.restype is None


def test_swapped_arguments_are_an_error_of_python(function):
    """Any neighbours of different types; the function itself is never reached."""
    example = {
        build.REALS: torch.zeros(64),
        build.WIDE_REALS: torch.zeros(64),
        build.DOUBLES: torch.zeros(64, dtype=torch.float64),
        build.INTEGERS: torch.zeros(64, dtype=torch.int64),
        build.SIZE: 1,
    }
    arguments = [example[kind] for kind in function.types]
    places = [place for place in range(2, len(arguments)) if function.types[place] is not function.types[place - 1]]
    assert places
    for place in places:
        swapped = list(arguments)
        swapped[place - 1], swapped[place] = swapped[place], swapped[place - 1]
        with pytest.raises(ctypes.ArgumentError):
            function(*swapped)
    with pytest.raises(AssertionError):
        function(*arguments, 1)
