"""Operators, which torch.compile and export see in place of the kernels: they keep to torch's rules."""

import contextlib
import importlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._vmap_internals import _vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from longmix.kernels import operators, ops
from longmix.kernels.selection import AROUND_MIXERS, OPERATIONS, obstacle

for _operation, _folder in OPERATIONS.items():
    importlib.import_module(f"longmix.kernels.{_folder}.operator")
PREFIX = "longmix::"
OPERATORS = sorted(
    name.removeprefix(PREFIX)
    for name in torch._C._dispatch_get_all_op_names()
    # Those around the mixers have tests of their own.
    if name.startswith(PREFIX) and not name.startswith(tuple(f"{PREFIX}{operation}" for operation in AROUND_MIXERS))
)
LARGEST = 5000  # numbers in the arguments of a call
# Operators that Triton kernels alone run behind: (operation, case) that calls them.
ONLY_TRITON = {
    "feature_map_attention": ("feature_map_attention", "wide"),
    "givens_mix_chunked": ("givens_mix", "several-blocks"),
    "near_attention": ("near_attention", "three"),
    "random_attention": ("random_feature_attention", "documents"),
    "spectral_filter": ("spectral_filter", "short"),
    "token_givens": ("token_givens_mix", "three"),
}


class Recorder(TorchDispatchMode):
    """Keeps calls of our operators in `calls`, {operator: {kind: arguments}}: the last one of each kind, the tensors'
    dtypes, those that are None, and the flags.
    """

    def __init__(self):
        super().__init__()
        self.calls = {name: {} for name in OPERATORS}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix(PREFIX)
        if name in self.calls and sum(x.numel() for x in args if isinstance(x, torch.Tensor)) <= LARGEST:
            kind = tuple(x.dtype if isinstance(x, torch.Tensor) else isinstance(x, bool) and x for x in args)
            self.calls[name][kind] = args
        return function(*args, **(kwargs or {}))


def record(cases, kernels):
    """The calls of our operators by cases of cases/ with LONGMIX_KERNELS, forward and backward."""
    with pytest.MonkeyPatch.context() as patch, Recorder() as recorder:
        patch.setenv("LONGMIX_KERNELS", kernels)
        for (module, name), dtype in itertools.product(cases, (torch.float32, torch.bfloat16)):
            arguments, keywords = module.inputs(name, torch.Generator().manual_seed(0))
            if sum(x.numel() for x in arguments if isinstance(x, torch.Tensor)) > LARGEST:
                continue
            arguments = [
                x.to(dtype).requires_grad_() if index in module.FLOATING and x is not None else x
                for index, x in enumerate(arguments)
            ]
            getattr(ops, module.OPERATION)(*arguments, **keywords).sum().backward()
    return recorder.calls


@pytest.fixture(scope="module")
def calls(cases, require_or_skip):
    """Calls of our operators by the cases of cases/."""
    for module, _ in cases:
        reason = obstacle(module.OPERATION, "cpu", "cpu")
        if reason is not None and not reason.startswith("it has no"):
            require_or_skip("compiler", reason)
    return record(cases, "auto")


@pytest.fixture(scope="module")
def triton_calls(cases, require_or_skip):
    """Those of ONLY_TRITON, which its interpreter takes long for."""
    for operation, _ in ONLY_TRITON.values():
        if (reason := obstacle(operation, "triton", "cpu")) is not None:
            require_or_skip("triton", reason)
    return record([case for case in cases if (case[0].OPERATION, case[1]) in ONLY_TRITON.values()], "triton")


@pytest.fixture
def check(request, monkeypatch):
    """check(operator, whether the kinds of calls that `covering` takes, or all others): torch's own checks of them."""

    def run(name, is_covering):
        monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
        is_only_triton = name.removesuffix("_backward") in ONLY_TRITON
        calls = request.getfixturevalue("triton_calls" if is_only_triton else "calls")[name]
        assert calls
        is_derivative = name.endswith(("_backward", "_derivative"))
        taken = covering(calls)
        for kind in taken if is_covering else calls.keys() - taken:
            arguments = [
                x.detach().clone().requires_grad_(x.is_floating_point() and not is_derivative)
                if isinstance(x, torch.Tensor)
                else x
                for x in calls[kind]
            ]
            torch.library.opcheck(getattr(torch.ops.longmix, name).default, arguments)

    return run


def covering(kinds):
    """Of kinds of calls, some that have each dtype, absence and flag that an argument takes at least once."""
    taken, seen = [], set()
    for kind in kinds:
        if not seen.issuperset(enumerate(kind)):
            taken.append(kind)
            seen.update(enumerate(kind))
    return taken


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] * (n.removesuffix("_backward") in ONLY_TRITON)) for n in OPERATORS],
)
def test_torchs_rules(name, check):
    check(name, is_covering=True)


@pytest.mark.full
@pytest.mark.parametrize("name", OPERATORS)
def test_torchs_rules_in_all_other_kinds_of_calls(name, check):
    check(name, is_covering=False)


def test_kernels_are_launched_on_the_card_that_holds_the_tensors(monkeypatch):
    """Triton asks for the current one, which in a process of several cards may be another."""

    class OnCard(torch.Tensor):
        is_cuda, device = True, torch.device("cuda", 1)

    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda card: entered.append(card) or contextlib.nullcontext())
    here, there = torch.ones(2), torch.ones(2).as_subclass(OnCard)
    for is_initialized in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda known=is_initialized: known)
        for arguments in ((here, None), (None, 3, there, there)):
            with operators.on_their_card(arguments):
                pass
    assert entered == [torch.device("cuda", 1)]


def test_an_operator_computes_on_the_card_of_its_tensors(monkeypatch, require_or_skip):
    if reason := obstacle("link_mix", "cpu", "cpu"):
        require_or_skip("compiler", reason)
    seen = []
    monkeypatch.setattr(operators, "on_their_card", lambda values: seen.append(values) or contextlib.nullcontext())
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    ops.link_mix(torch.ones(1, 3, 2), torch.ones(1, 3, 1, 2), torch.zeros(1, 2, dtype=torch.int64))
    assert len(seen) == 1


def test_calls_at_which_nobody_looks_go_past_the_dispatcher(monkeypatch):
    class Own(torch.Tensor):
        pass

    x, seen = torch.ones(2), []
    operator = operators.Operator(lambda *arguments: "dispatched", lambda *arguments: "computed")

    def call(*tensors):
        return operator("cpu_kernels", *(tensors or (x,)), 3, None)

    assert call() == call(x, torch.nn.Parameter(x, requires_grad=False)) == "computed"
    with torch.device("cpu"):
        assert call() == "computed"
    for tensor in (x.as_subclass(Own), torch.ones(2, device="meta")):
        assert call(x, tensor) == "dispatched"
    assert call(torch._neg_view(x)) == call(torch._efficientzerotensor(2)) == "dispatched"
    _vmap(lambda y: seen.append(call(y)) or y)(torch.ones(1, 2))
    assert seen == ["dispatched"]
    for context in (
        Recorder(),
        FakeTensorMode(),
        FlopCounterMode(display=False),
        torch.autograd.profiler.profile(),
        torch.autograd.forward_ad.dual_level(),
    ):
        with context:
            assert call() == "dispatched"
    assert torch.func.vmap(lambda y: y * (call() == "dispatched"))(torch.ones(1)).all()
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert call() == "dispatched"

    leaf = x.clone().requires_grad_()
    assert call(leaf) == "dispatched"  # where torch refuses a derivative that there is not
    with torch.no_grad():
        assert call(leaf) == "computed"


def test_gradients_are_the_same_for_those_who_look(monkeypatch, require_or_skip):
    if reason := obstacle("link_mix", "cpu", "cpu"):
        require_or_skip("compiler", reason)
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((2, 9, 4), (2, 9, 2, 3))]
    offsets = torch.tensor([[0, 1, 2], [0, 2, 4]])

    def gradients():
        result = ops.link_mix(*arguments, offsets)
        return result.grad_fn.name(), torch.autograd.grad(result.sin().sum(), arguments)

    name, found = gradients()
    assert name == "link_mixBackward"
    with Recorder() as recorder:
        dispatched, expected = gradients()
    assert dispatched != name and recorder.calls["link_mix"] and recorder.calls["link_mix_backward"]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_argument_without_data_among_others_is_refused():
    """Torch would compute nothing, and hand over a result that nobody has written."""
    rows, taps = torch.randn(1, 8, 4), torch.randn(4, 4, device="meta")
    with pytest.raises(ValueError, match="wavelet_analysis has tensors on cpu and meta; allowed: all on one device"):
        ops.wavelet_analysis(rows, taps, 1)
