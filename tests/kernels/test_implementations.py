"""Every implementation of every operation against its reference, over the cases of cases/."""

import pytest
import torch

from longmix.kernels import build, ops
from longmix.kernels.selection import obstacle

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMPLEMENTATIONS = ("portable", "cpu", "triton")
TRUTHS = {}


def run(name, case, monkeypatch, dtype=torch.float32, gradients=True):
    """[result, gradients ...] of one implementation, for inputs that are the same for all."""
    module, label = case
    generator = torch.Generator().manual_seed(0)
    arguments, keywords = module.inputs(label, generator)
    # Rounded alike for all implementations: what is compared is the arithmetic.
    arguments = [
        argument.to(dtype).to(torch.float64 if name == "reference" else dtype)
        if index in module.FLOATING and argument is not None
        else argument
        for index, argument in enumerate(arguments)
    ]
    device = DEVICE if name != "cpu" else "cpu"
    arguments = [tensor.to(device) if isinstance(tensor, torch.Tensor) else tensor for tensor in arguments]
    keywords = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in keywords.items()}
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    leaves = [arguments[index].requires_grad_(gradients) for index in module.FLOATING if arguments[index] is not None]
    result = getattr(ops, module.OPERATION)(*arguments, **keywords)
    if not gradients:
        return [result.cpu()]
    cotangent = torch.randn(result.shape, generator=generator).to(result)
    # An argument that a small case does not use, like the rotations of a single row, has a gradient of zero.
    gradients = torch.autograd.grad(result, leaves, cotangent, materialize_grads=True)
    return [result.detach().cpu(), *(gradient.cpu() for gradient in gradients)]


def reference(case, monkeypatch, dtype=torch.float32):
    """Results of `run` for the reference, computed once: fp32 and float64 get the same inputs."""
    module, label = case
    key = (module.OPERATION, label, torch.float64 if dtype == torch.float32 else dtype)
    if key not in TRUTHS:
        TRUTHS[key] = run("reference", case, monkeypatch, dtype)
    return TRUTHS[key]


@pytest.fixture
def can_run(require_or_skip, case):
    """can_run(name): skips what has no such implementation here; Triton's interpreter takes small cases only."""
    module, label = case

    def decide(name):
        if name == "portable":
            return
        kind = DEVICE if name == "triton" else "cpu"
        if name == "triton" and kind == "cpu" and not module.CASES[label][-1]:
            pytest.skip("too large for Triton's interpreter")
        reason = obstacle(module.OPERATION, name, kind)
        if reason is None:
            return
        if reason.startswith("it has no"):
            pytest.skip(reason)
        require_or_skip({"cpu": "compiler", "triton": "triton"}[name], reason)

    return decide


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_equals_the_reference(name, case, can_run, relative_rms, monkeypatch, poisoned_memory):
    can_run(name)
    truth, found = reference(case, monkeypatch), run(name, case, monkeypatch)
    assert found[0].dtype == torch.float32
    assert relative_rms(found[0], truth[0], absolute_at_zero=True) < 1e-5
    for expected, gradient in zip(truth[1:], found[1:], strict=True):
        assert relative_rms(gradient, expected, absolute_at_zero=True) < 1e-4


# Every implementation turns half precision into fp32 in the same line; Triton's interpreter takes long for each.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("portable", torch.bfloat16),
        ("cpu", torch.bfloat16),
        pytest.param("triton", torch.bfloat16, marks=pytest.mark.full),
        *(pytest.param(name, torch.float16, marks=pytest.mark.full) for name in IMPLEMENTATIONS),
    ],
)
def test_half_precision_is_summed_in_fp32(name, dtype, case, can_run, relative_rms, monkeypatch, poisoned_memory):
    can_run(name)
    truth, found = reference(case, monkeypatch, dtype), run(name, case, monkeypatch, dtype)
    assert found[0].dtype == dtype
    for expected, value in zip(truth, found, strict=True):
        assert relative_rms(value, expected, absolute_at_zero=True) < 2e-2


@pytest.mark.parametrize("name", IMPLEMENTATIONS[:2])
def test_float64_is_kept(name, case, can_run, relative_rms, monkeypatch):
    can_run(name)
    truth, found = reference(case, monkeypatch, torch.float64), run(name, case, monkeypatch, torch.float64)
    for expected, value in zip(truth, found, strict=True):
        assert value.dtype == torch.float64
        assert relative_rms(value, expected, absolute_at_zero=True) < 1e-10


def test_threads_do_not_change_a_bit(case, can_run, monkeypatch):
    if case[0].OPERATION == "random_feature_attention":
        pytest.skip("its features are products of PyTorch, whose sums depend on threads")
    can_run("cpu")
    monkeypatch.setattr(build, "ELEMENTS_PER_THREAD", 1)  # small cases on threads too
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (2, 8):
            torch.set_num_threads(threads)
            results.append(run("cpu", case, monkeypatch))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))
