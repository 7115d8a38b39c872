"""Gradients of gradients: right where an implementation has them, an error where it has none, never silently wrong."""

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import OPERATIONS, obstacle


def derivative(module, name, index, monkeypatch):
    """Gradients of the sum of the result and of the squared gradient by floating argument `index`, a small case."""
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    label = next(label for label in module.CASES if label.startswith("three"))
    arguments, keywords = module.inputs(label, torch.Generator().manual_seed(0))
    leaves = [arguments[place].double().requires_grad_() for place in module.FLOATING]
    arguments = list(arguments)
    for place, leaf in zip(module.FLOATING, leaves, strict=True):
        arguments[place] = leaf
    # The gradient that comes in needs none itself: the backward pass is differentiated all the same.
    total = getattr(ops, module.OPERATION)(*arguments, **keywords).sum()
    (first,) = torch.autograd.grad(total, leaves[index], create_graph=True)
    return torch.autograd.grad(total + first.square().sum(), leaves, materialize_grads=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["portable", "cpu", pytest.param("triton", marks=pytest.mark.full)])
def test_second_derivatives_are_right_or_refused(name, operation, cases, monkeypatch, require_or_skip):
    if name != "portable" and (reason := obstacle(operation, name, "cpu")) is not None:
        if not reason.startswith("it has no"):
            require_or_skip({"cpu": "compiler", "triton": "triton"}[name], reason)
        pytest.skip(reason)
    module = next(module for module, _ in cases if operation == module.OPERATION)
    refused = 0
    for index in range(len(module.FLOATING)):
        try:
            found = derivative(module, name, index, monkeypatch)
        except RuntimeError as error:
            assert "no autograd formula was registered" in str(error)
            refused += 1
            continue
        truth = derivative(module, "reference", index, monkeypatch)
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-9)
    if name == "portable" and operation != "spectral_filter":  # all in plain PyTorch
        assert refused == 0


def product_with_hessian(module, label, name, monkeypatch):
    """Derivative of <gradients, directions> by every floating argument and by the gradient that came in, in float64."""
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    generator = torch.Generator().manual_seed(0)
    arguments, keywords = module.inputs(label, generator)
    places = [place for place in module.FLOATING if arguments[place] is not None]
    leaves = [arguments[place].double().requires_grad_() for place in places]
    arguments = list(arguments)
    for place, leaf in zip(places, leaves, strict=True):
        arguments[place] = leaf
    result = getattr(ops, module.OPERATION)(*arguments, **keywords)
    incoming = torch.randn(result.shape, generator=generator, dtype=result.dtype).requires_grad_()
    first = torch.autograd.grad(result, leaves, incoming, create_graph=True, materialize_grads=True)
    total = sum((one * torch.randn(one.shape, generator=generator, dtype=one.dtype)).sum() for one in first)
    return torch.autograd.grad(total, [incoming, *leaves], materialize_grads=True)


# The result depends on every argument by more than one way: a way that is lost leaves the others, and no error.
@pytest.mark.parametrize("name", ["portable", pytest.param("cpu", marks=pytest.mark.full)])
def test_a_product_with_the_hessian_loses_no_way(case, name, monkeypatch, require_or_skip):
    module, label = case
    if not module.CASES[label][2]:
        pytest.skip("its way through the code is that of a smaller case")
    if name == "cpu" and (reason := obstacle(module.OPERATION, "cpu", "cpu")) is not None:
        if not reason.startswith("it has no"):
            require_or_skip("compiler", reason)
        pytest.skip(reason)
    try:
        found = product_with_hessian(module, label, name, monkeypatch)
    except RuntimeError as error:
        assert "no autograd formula was registered" in str(error)
        assert name == "cpu" or module.OPERATION == "spectral_filter"
        return
    truth = product_with_hessian(module, label, "reference", monkeypatch)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)
