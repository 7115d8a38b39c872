"""The cross entropy of a linear layer: results, gradients, what it refuses, and that its logits are never all there."""

import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.kernels import build, ops
from longmix.kernels.linear_cross_entropy import operator, portable
from longmix.kernels.linear_cross_entropy.labels import IGNORED_LABEL

OPERATION = "linear_cross_entropy"
CPU = "longmix.kernels.linear_cross_entropy.cpu_kernels"
# rows, channels, words, whether there is a bias, share of rows that count
CASES = {
    "one": (1, 1, 1, True, 1.0),
    "no-rows": (0, 3, 5, True, 1.0),
    "none-counts": (6, 3, 5, True, 0.0),
    "two-words": (5, 4, 2, False, 0.8),
    "odd": (7, 5, 67, True, 0.7),
    "several-products": (50, 7, 130, True, 0.8),
    "whole-registers": (40, 8, 256, False, 1.0),
}


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Products of some ten rows: what is put together is met in small cases."""
    kernels = importlib.import_module(CPU)
    monkeypatch.setattr(kernels, "PRODUCT", 1024)
    monkeypatch.setattr(kernels, "PRODUCT_IN_HALF", 2048)


@pytest.fixture
def choose(choose_implementation):
    return lambda name: choose_implementation(OPERATION, name)


def inputs(label, dtype=torch.float32, scale=1.0):
    rows, channels, words, has_bias, share = CASES[label]
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        (scale * torch.randn(size, generator=generator)).to(dtype)
        for size in ((rows, channels), (words, channels), (words,))
    )
    labels = torch.randint(0, words, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) >= share] = IGNORED_LABEL
    return hidden, weight, bias if has_bias else None, labels


def run(hidden, weight, bias, labels, factor=0.5):
    """[sum, which are right, gradients of `factor` times the sum]."""
    leaves = [None if one is None else one.detach().requires_grad_() for one in (hidden, weight, bias)]
    total, are_right = ops.linear_cross_entropy(*leaves, labels)
    gradients = torch.autograd.grad(factor * total, [leaf for leaf in leaves if leaf is not None])
    return [total.detach(), are_right, *gradients]


def compare(name, arguments, choose, relative_rms, tolerance):
    choose("reference")
    wide = [one.double() if one is not None and one.is_floating_point() else one for one in arguments]
    truth = run(*wide)
    choose(name)
    found = run(*arguments)
    assert torch.equal(found[1], truth[1]) and found[1].dtype == torch.bool
    assert found[0].dtype == torch.promote_types(arguments[0].dtype, torch.float32)
    for one, expected in zip((found[0], *found[2:]), (truth[0], *truth[2:]), strict=True):
        assert relative_rms(one, expected, absolute_at_zero=True) < tolerance
    assert all(one.dtype == arguments[0].dtype for one in found[2:])


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("name", ["portable", "cpu"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-14), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)],
    ids=["fp32", "fp64", "bf16", "fp16"],
)
def test_equals_the_reference(name, label, dtype, tolerance, choose, relative_rms, poisoned_memory):
    compare(name, inputs(label, dtype), choose, relative_rms, tolerance)


@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_large_logits(name, choose, relative_rms):
    """Of some thousands, whose exponentials are no numbers of fp32: the reference of smaller ones is another."""
    hidden, weight, bias, labels = inputs("several-products", torch.float64, scale=30.0)
    choose("portable")
    truth = run(hidden, weight, bias, labels)
    choose(name)
    found = run(hidden.float(), weight.float(), bias.float(), labels)
    assert truth[0] > 1e4 and relative_rms(found[0], truth[0]) < 1e-6
    for one, expected in zip(found[2:], truth[2:], strict=True):
        assert relative_rms(one, expected) < 1e-4


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_what_all_logits_have_in_common_is_not_in_the_loss(name, choose):
    choose(name)
    for shift in (0.0, 1e2, 1e4, 1e6):  # the logits are whole numbers, and exact
        weight = torch.tensor([[3.0], [0.0], [-2.0]]) + shift
        total, _ = ops.linear_cross_entropy(torch.ones(2, 1), weight, None, torch.tensor([0, 0]))
        torch.testing.assert_close(total.float(), torch.tensor(2 * 0.0549852), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_rows_that_do_not_count_may_hold_anything(name, choose):
    choose(name)
    hidden, weight, _, labels = inputs("several-products")
    truth = run(hidden, weight, None, labels)
    spoiled = hidden.masked_fill((labels == IGNORED_LABEL)[:, None], torch.inf)
    total, are_right = ops.linear_cross_entropy(spoiled, weight, None, labels)
    assert torch.equal(total, truth[0]) and torch.equal(are_right, truth[1])


@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_sums_over_many_rows_do_not_overflow_in_fp16(name, choose, monkeypatch):
    choose(name)
    monkeypatch.setattr(importlib.import_module(CPU), "PRODUCT_IN_HALF", 1 << 30)
    hidden = torch.full((20_000, 2), 8.0, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(4, 2, dtype=torch.float16, requires_grad=True)
    total, _ = ops.linear_cross_entropy(hidden, weight, None, torch.zeros(20_000, dtype=torch.int64))
    (total / len(hidden)).backward()
    torch.testing.assert_close(weight.grad[:, 0].float(), 8 * torch.tensor([-0.75, 0.25, 0.25, 0.25]), rtol=0.2, atol=0)


def test_threads_change_no_bit_of_losses_and_the_bias_gradient(choose, monkeypatch):
    choose("cpu")
    monkeypatch.setattr(build, "ELEMENTS_PER_THREAD", 1)
    kernels, before = importlib.import_module(CPU), torch.get_num_threads()
    hidden, weight, bias, labels = inputs("several-products")
    logits, found = hidden @ weight.T, []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            made = logits.clone(), torch.empty(len(labels)), torch.empty_like(labels), torch.zeros_like(bias)
            kernels._to_gradients(made[0], bias, labels, made[1], made[2], True, made[3])
            found.append(made)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0][3], found[0][0].sum(0))
    assert all(torch.equal(one, other) for other in found[1:] for one, other in zip(found[0], other, strict=True))


def test_few_rows_are_left_to_plain_pytorch(choose, monkeypatch):
    choose("cpu")
    monkeypatch.setattr(operator, "_forward", None)
    hidden, labels = torch.randn(8, 8), torch.zeros(8).long()
    assert ops.linear_cross_entropy(hidden, torch.randn(20, 8), None, labels)[0].isfinite()
    with pytest.raises(TypeError):
        ops.linear_cross_entropy(torch.randn(9, 8), torch.randn(20, 8), None, torch.zeros(9).long())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("words", [3, 67])
def test_what_is_no_number_makes_the_sum_none(value, words, choose):
    choose("cpu")
    for place in (0, words - 1):
        bias = torch.zeros(words)
        bias[place] = value
        total, are_right = ops.linear_cross_entropy(torch.ones(2, 1), torch.ones(words, 1), bias, torch.tensor([1, 2]))
        assert total.isnan() and not are_right.any()


def test_a_word_that_is_impossible_counts_nothing(choose):
    choose("cpu")
    bias = torch.tensor([-torch.inf, 0.0, 0.0])
    total, are_right = ops.linear_cross_entropy(torch.ones(2, 1), torch.ones(3, 1), bias, torch.tensor([1, 1]))
    torch.testing.assert_close(total, 2 * torch.tensor(2.0).log())
    assert are_right.all()


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_of_equal_logits_the_first_is_the_answer(name, choose):
    choose(name)
    weight = torch.zeros(70, 2)
    weight[[5, 40, 69]] = 1.0
    labels = torch.tensor([5, 40, 69, 0])
    _, are_right = ops.linear_cross_entropy(torch.ones(4, 2), weight, None, labels)
    assert are_right.tolist() == [True, False, False, False]


@pytest.mark.parametrize("frozen", ["hidden", "parameters", "everything"])
def test_gradients_are_made_where_they_are_asked_for(frozen, choose, monkeypatch):
    choose("cpu")
    hidden, weight, bias, labels = inputs("odd")
    hidden.requires_grad_(frozen == "parameters")
    weight.requires_grad_(frozen == "hidden"), bias.requires_grad_(frozen == "hidden")
    made = []
    forward = operator._forward
    monkeypatch.setattr(operator, "_forward", lambda *given: made.append(forward(*given)) or made[-1])
    total, _ = ops.linear_cross_entropy(hidden, weight, bias, labels)
    sizes = [part.numel() for part in made[0][2:]]
    expected = [part.numel() if part.requires_grad else 0 for part in (hidden, weight, bias)]
    assert sizes == expected and total.requires_grad == (frozen != "everything")
    if total.requires_grad:
        total.backward()
        assert [part.grad is not None for part in (hidden, weight, bias)] == [size > 0 for size in sizes]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_the_logits_are_never_all_there(choose):
    choose("cpu")
    hidden, weight, bias, labels = (torch.randn(500, 4), torch.randn(64, 4), torch.randn(64), torch.zeros(500).long())
    with Largest() as largest:
        importlib.import_module(CPU).linear_cross_entropy(hidden, weight, bias, labels, True, True)
    assert largest.elements == hidden.numel()  # 2,000; the logits are 32,000
    with Largest() as largest:
        portable.linear_cross_entropy(hidden, weight, bias, labels)
    assert largest.elements == 500 * 64


def test_second_derivatives_are_right_or_refused(choose):
    arguments = inputs("odd", torch.float64)

    def second():
        hidden = arguments[0].detach().requires_grad_()
        total, _ = ops.linear_cross_entropy(hidden, *arguments[1:])
        (first,) = torch.autograd.grad(total, hidden, create_graph=True)
        return torch.autograd.grad(first.square().sum(), hidden)[0]

    choose("reference")
    truth = second()
    choose("portable")
    torch.testing.assert_close(second(), truth)
    choose("cpu")
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        second()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hidden": torch.ones(2, 2, 3)}, r"hidden has shape \(2, 2, 3\); needed: \(M, D\)"),
        ({"weight": torch.ones(5, 4)}, r"weight has shape \(5, 4\); needed: \(V, 3\), V at least 1"),
        ({"weight": torch.ones(0, 3)}, r"weight has shape \(0, 3\)"),
        ({"bias": torch.ones(4)}, r"bias has shape \(4,\); needed: \(5,\)"),
        ({"bias": torch.ones(5).half()}, "bias has dtype torch.float16, on cpu; needed: torch.float32, on cpu, as hid"),
        (
            {"weight": torch.ones(5, 3, device="meta")},
            "weight has dtype torch.float32, on meta; needed: torch.float32, on",
        ),
        ({"hidden": torch.ones(2, 3).int()}, "hidden has dtype torch.int32; needed: a floating dtype"),
        ({"labels": torch.ones(2)}, "labels has dtype torch.float32; allowed: torch.int64, "),
        ({"labels": torch.ones(3).long()}, r"labels has shape \(3,\); allowed: \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(changed, told):
    fitting = {
        "hidden": torch.ones(2, 3),
        "weight": torch.ones(5, 3),
        "bias": torch.ones(5),
        "labels": torch.tensor([0, 4]),
    }
    ops.linear_cross_entropy(**fitting)
    with pytest.raises(ValueError, match=told):
        ops.linear_cross_entropy(**{**fitting, **changed})


@pytest.mark.parametrize("label", [5, -1, -99])
@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_labels_that_are_no_words_are_refused(name, label, choose):
    choose(name)
    with pytest.raises(IndexError, match=r"out of bounds"):
        ops.linear_cross_entropy(torch.ones(2, 1), torch.ones(5, 1), None, torch.tensor([0, label]))


def test_plain_pytorch_runs_where_triton_is_asked_for(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    assert ops.implementation(OPERATION, "cuda") == ops.implementation(OPERATION, "cpu") == "portable"
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    with pytest.raises(ValueError, match="LONGMIX_KERNELS is 'cpu', but linear_cross_entropy cannot run so: it is for"):
        ops.implementation(OPERATION, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_torchs_rules_of_operators(dtype, has_bias, choose):
    choose("cpu")
    hidden, weight, bias, labels = inputs("odd", dtype)
    arguments = [hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_() if has_bias else None, labels]
    for asked in (True, False):
        given = ("cpu_kernels", *arguments, asked, asked)
        torch.library.opcheck(operator._forward.registered, given, test_utils=("test_schema", "test_faketensor"))
