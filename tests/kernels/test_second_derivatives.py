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
