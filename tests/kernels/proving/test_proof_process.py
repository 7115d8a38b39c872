"""What the process does that proves, in this one: C++ plays Triton, right or with planted mistakes."""

import importlib
import os
import re
import sys
import types

import pytest
import torch

from longmix.kernels import proof_worker, proving, selection
from longmix.kernels.selection import OPERATIONS

CPU = torch.device("cpu")
# C++ makes neither neighbours nor random features, angles and Fourier transforms with kernels of its own, and features
# one by one with those of linear attention.
WITHOUT_CPP = {
    "feature_map_attention",
    "near_attention",
    "random_feature_attention",
    "spectral_filter",
    "token_givens_mix",
}
WITH_CPP = sorted(set(OPERATIONS) - WITHOUT_CPP)


@pytest.fixture
def cpp(require_or_skip, plant):
    """cpp(operation, part=function of the right function, ...): C++ plays Triton, but for the given parts."""

    def plays(operation, **parts):
        if reason := selection.obstacle(operation, "cpu", "cpu"):
            require_or_skip("compiler", reason)
        right = importlib.import_module(f"longmix.kernels.{OPERATIONS[operation]}.cpu_kernels")
        kernels = {
            name: of_any_layout(value) if isinstance(value, types.FunctionType) else value
            for name, value in vars(right).items()
            if not name.startswith("__")
        }
        changed = {name: change(kernels[name]) for name, change in parts.items()}
        plant(OPERATIONS[operation], **{**kernels, **changed})

    return plays


def of_any_layout(function):
    """C++ takes contiguous tensors, Triton some that lie in other ways."""
    return lambda *arguments: function(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in arguments))


LINKS = ("link_mix", proving.proof_module("link_mix").Form(torch.float32, 70, 2, 3, True, 16, 512, True, True))


def raising(error):
    def function(*_):
        raise error

    return lambda right: function


def forgetting_a_row(right):
    def function(*arguments):
        result = torch.empty_like(right(*arguments))
        result[:, 1:] = right(*arguments)[:, 1:]
        return result

    return function


def drifting(right):
    calls = []

    def function(*arguments):
        calls.append(1)
        return right(*arguments) * (1 + 1e-7 * len(calls))

    return function


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({}, None),
        ({"link_mix": lambda right: lambda *x: right(*x) * 1.0001}, r"its result differs by 1\.0e-04 \(relative; all"),
        (
            {"link_mix_backward": lambda right: lambda *x: (right(*x)[0], right(*x)[1].flip(2))},
            r"gradient 2 differs by \d\.\de[+-]\d\d \(relative; allowed: 1e-04\)",
        ),
        ({"link_mix": forgetting_a_row}, r"its result differs by inf"),
        ({"link_mix": drifting}, "its result is another one each time"),
        ({"link_mix": raising(RuntimeError("out of resources:\nshared memory"))}, "RuntimeError: out of resources:"),
    ],
)
def test_a_proof_finds_what_is_wrong(cpp, parts, reason):
    cpp("link_mix", **parts)
    outcome = proof_worker.prove_form(*LINKS, CPU)
    assert outcome.passed == (reason is None) and outcome.decided
    if reason is None:
        assert outcome.reason is None and 0 < outcome.error < 1e-5
    else:
        assert re.match(reason, outcome.reason), outcome.reason
    assert not torch.are_deterministic_algorithms_enabled() and "LONGMIX_KERNELS" not in os.environ


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_arguments_of_several_dtypes_are_proved_as_they_are(cpp, dtypes):
    found = []

    def noting(right):
        def function(*arguments):
            found.append(tuple(x.dtype for x in arguments[:2]))
            return right(*arguments)

        return function

    cpp("link_mix", link_mix=noting)
    outcome = proof_worker.prove_form("link_mix", LINKS[1]._replace(dtype=dtypes[0], dtypes=dtypes), CPU)
    assert outcome.passed, outcome.reason
    assert set(found) == {dtypes}


def test_a_device_without_memory_proves_nothing(cpp):
    cpp("link_mix", link_mix=raising(torch.OutOfMemoryError("CUDA out of memory")))
    outcome = proof_worker.prove_form(*LINKS, CPU)
    assert not outcome.passed and not outcome.decided and outcome.reason == "the GPU has no memory left for a proof"


def test_times_are_taken_of_what_passes(cpp):
    cpp("link_mix")
    outcome = proof_worker.prove_form(*LINKS, CPU, measured_positions=8)
    assert min(outcome.milliseconds, outcome.portable_milliseconds, outcome.seconds, outcome.compile_seconds) > 0


# No C++ takes features in fp32 beside values in half precision.
PLAYED = [
    (operation, dtype)
    for operation in WITH_CPP
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if dtype == torch.float32 or not operation.endswith("attention")
]


@pytest.mark.full
@pytest.mark.parametrize(("operation", "dtype"), PLAYED)
def test_right_kernels_pass_the_proofs_of_base_models(operation, dtype, cpp):
    cpp(operation)
    # No C++ takes one order of rotations by chunks.
    base = () if operation == "givens_mix" else (proving.typical(operation, dtype).form,)
    for form in (*base, longest_form(operation, dtype)):
        outcome = proof_worker.prove_form(operation, form, CPU)
        assert outcome.passed and outcome.error < 2e-2, outcome


def longest_form(operation, dtype):
    """The form with everything that a base model can have besides."""
    form = proving.typical(operation, dtype).form
    more = {"causal": True, "documents": True, "permuted": True, "wrap": False, "levels": 3, "orders": 2, "cut": False}
    return form._replace(**{name: value for name, value in more.items() if name in form._fields})


# A form of each folder, as small as the interpreter needs it.
SMALL = {
    "feature_attention": (1, 3, 2, False, True, False, True),
    "feature_map_attention": (1, 3, 2, "elu", True, True, True),
    "givens_mix": (1, 2, 1, False, True, True, True, True),
    "lifting_synthesis": (1, 2, 2, 1, True),
    "link_mix": (1, 1, 2, False, 64, True, True, True),
    "near_attention": (1, 2, 3, 3, 1, True, True),
    "random_feature_attention": (1, 3, 2, 2, False, True, False, 1, True, True, True),
    "spectral_filter": (2, 3, True, True, True, True),
    "token_givens_mix": (1, 2, 1, False, True, True, 3, True, True, True),
    "wavelet_analysis": (1, 2, 1, True),
}


@pytest.mark.full
@pytest.mark.slow
def test_real_processes_prove_the_interpreted_kernels(pretend, monkeypatch, pytestconfig):
    """A third of them at each commit, for the interpreter takes half a minute for some."""
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-P", "-m", "longmix.kernels.proof_worker"))
    names = list(SMALL)[pytestconfig.getoption("fault_seed") % 3 :: 3]
    proofs = [proving.Proof(name, proving.proof_module(name).Form(torch.float32, *SMALL[name])) for name in names]
    verdicts = proving.prove_all(proofs, CPU)
    assert [(verdict.operation, verdict.passed, verdict.reason) for verdict in verdicts] == [
        (name, True, None) for name in names
    ]
    assert proving.fault(CPU) is None
    assert "cannot use the device" in proving.fault("cuda:99")
