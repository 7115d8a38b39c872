"""The choice of the implementation that runs, and the reasons why another one cannot."""

import contextlib
import importlib.machinery
import importlib.util
import subprocess
import sys
import types

import pytest
import torch

from longmix.kernels import ops, selection
from longmix.kernels.selection import OPERATIONS


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch):
    """Every test asks anew what can run."""
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    selection._obstacle.cache_clear()
    selection._warned.clear()
    yield
    selection._obstacle.cache_clear()
    selection._warned.clear()


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("cpu", "cuda", "it is for the CPU, not for cuda"),
        ("triton", "cpu", "triton needs a GPU, not cpu, or its interpreter"),
        ("triton", "cuda", "triton is not installed"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(operation, name, device, reason, monkeypatch, request):
    if name == "cpu" and operation in ("near_attention", "spectral_filter"):
        reason = "it has no cpu implementation"
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    if "not installed" in reason:
        monkeypatch.setitem(sys.modules, "triton", None)
    elif name == "triton":
        request.getfixturevalue("triton")
    with pytest.raises(ValueError, match=f"LONGMIX_KERNELS is '{name}', but {operation} cannot run so: {reason}"):
        ops.implementation(operation, device)


def test_a_triton_that_is_too_old_is_told_in_one_line(monkeypatch):
    old = types.ModuleType("triton")
    old.__version__, old.__spec__ = "3.4.0", importlib.machinery.ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", old)
    for module in [name for name in sys.modules if name.startswith("longmix.kernels.lifting.gpu_kernels")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.startswith(("triton.", "longmix.kernels.bands.gpu"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(selection, "_gpu_is_here", lambda: True)
    reason = r"triton 3\.4\.0 cannot import its kernels \(.*Error: .*\); needed is a triton .* 3\.5 or later"
    with pytest.warns(UserWarning, match=reason + "; plain PyTorch runs in place of the Triton kernels"):
        assert ops.implementation("lifting_analysis", "cuda") == "portable"
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    with pytest.raises(ValueError, match="lifting_analysis cannot run so: " + reason):
        ops.implementation("lifting_analysis", "cuda")


def test_a_triton_that_is_older_than_some_kernels_runs_none(triton, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.4.1")
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    selection._obstacle.cache_clear()
    with pytest.raises(
        ValueError, match=r"cannot run so: triton 3\.4\.1 cannot import all kernels; needed is a triton"
    ):
        ops.implementation("token_givens_mix", "cuda")
    monkeypatch.setattr(triton, "__version__", "3.10.0+git12")
    selection._obstacle.cache_clear()
    assert ops.implementation("token_givens_mix", "cuda") == "triton"
    selection._obstacle.cache_clear()


def test_what_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    with pytest.raises(ValueError, match="spectral_filter cannot run so: it has no cpu implementation"):
        ops.spectral_filter(torch.zeros(1, 4, 2), torch.zeros(3, 2, 2), 4)


def test_without_longmix_what_is_around_mixers_is_plain_pytorch(monkeypatch):
    """In code that was exported with a model; it knows what it runs itself."""
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    selection._has.cache_clear()

    def find(name):
        raise ModuleNotFoundError("No module named 'longmix'")

    monkeypatch.setattr(selection.importlib.util, "find_spec", find)
    assert [ops.implementation(name, "cuda") for name in selection.AROUND_MIXERS] == ["portable", "portable"]
    selection._has.cache_clear()


@pytest.mark.parametrize("module", ["link_mix.cpu", "link_mix.gpu", "rotary.cpu_kernels", "rotary.gpu_kernels"])
def test_what_exported_code_of_earlier_versions_looks_for_is_not_there(module):
    """It would take kernels for others, whose functions are other ones; without them it runs plain PyTorch."""
    with contextlib.suppress(ModuleNotFoundError):
        assert importlib.util.find_spec(f"longmix.kernels.{module}") is None


def test_other_choices_are_refused(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "fast")
    with pytest.raises(ValueError, match="LONGMIX_KERNELS is 'fast'; allowed: auto, reference, portable, cpu, triton"):
        ops.spectral_filter(torch.zeros(1, 4, 2), torch.zeros(3, 2, 2), 4)
    with pytest.raises(ValueError, match="operation 'spectral_filtre' is unknown; allowed: feature_attention, "):
        ops.implementation("spectral_filtre", "cpu")


def test_plain_pytorch_is_chosen_by_itself_where_kernels_cannot_run(monkeypatch):
    monkeypatch.setattr(selection, "_gpu_is_here", lambda: False)
    for operation in OPERATIONS:
        assert ops.implementation(operation, "cuda") == "portable"
    assert ops.implementation("spectral_filter", "cpu") == "portable"


@pytest.mark.parametrize("choice", ["auto", "reference", "portable", "cpu"])
def test_choices(choice, monkeypatch, require_or_skip):
    if reason := selection.obstacle("link_mix", "cpu", "cpu"):
        require_or_skip("compiler", reason)
    monkeypatch.setenv("LONGMIX_KERNELS", choice)
    assert ops.implementation("link_mix", torch.device("cpu")) == {"auto": "cpu"}.get(choice, choice)


def test_a_call_chooses_once_and_its_derivative_runs_what_was_chosen(monkeypatch, require_or_skip):
    if reason := selection.obstacle("link_mix", "cpu", "cpu"):
        require_or_skip("compiler", reason)
    choices, choose = [], selection.implementation
    monkeypatch.setattr(selection, "implementation", lambda *call: choices.append(choose(*call)) or choices[-1])
    value = torch.ones(1, 5, 2, requires_grad=True)
    result = ops.link_mix(value, torch.ones(1, 5, 2, 3), torch.arange(6).view(2, 3))
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    monkeypatch.setitem(sys.modules, "longmix.kernels.link_mix.gpu_kernels", None)
    result.sum().backward()
    assert choices == ["cpu"] and value.grad.isfinite().all()


def test_everything_runs_without_triton():
    code = """
import sys
import types
sys.modules["triton"] = None
import torch
from longmix.kernels import ops
rows, taps = torch.randn(2, 6, 4, requires_grad=True), torch.randn(4, 4)
features = rows.exp().view(2, 1, 6, 4)
angles, more = torch.randn(2, 1, 1, 5, 3), {"lengths": torch.tensor([6, 3])}
results = [
    ops.feature_attention(features, features, features, **more),
    ops.linear_attention(features, features, features, causal=True, **more),
    ops.givens_mix(rows.view(2, 6, 1, 2, 2), angles, angles, torch.randn(2, 1, 6), **more),
    ops.link_mix(rows, torch.randn(2, 6, 2, 3), torch.arange(6).view(2, 3), **more),
    ops.spectral_filter(rows, torch.randn(5, 4, 2), 8, **more),
    ops.wavelet_synthesis(ops.wavelet_analysis(rows, taps, 1, **more), taps, 1, 2, 6, **more),
    ops.lifting_synthesis(ops.lifting_analysis(rows, taps, taps, 1, **more), taps, taps, 1, 2, 6, **more),
]
sum(result.sum() for result in results).backward()
assert rows.grad.isfinite().all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.full
def test_a_graph_of_two_operations_takes_modules_that_come_while_it_is_traced():
    """In a new process, where neither of them has run; a traced function sees no change of sys.modules."""
    code = """
import sys
import torch
from longmix.kernels import ops

def both(value):
    linked = ops.link_mix(value[:, 0], torch.zeros(1, 6, 1, 2), torch.zeros(1, 2, dtype=torch.int64))
    return ops.linear_attention(value, value, value).sum() + linked.sum()

assert not [name for name in sys.modules if name.endswith(".operator") and name.startswith("longmix.kernels.")]
torch.compile(both, fullgraph=True, backend="eager")(torch.rand(1, 2, 6, 4))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
