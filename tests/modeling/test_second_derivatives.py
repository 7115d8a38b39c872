"""A model's product with its Hessian is what differences of its gradients say."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from longmix.modeling.converter.layers import LinearOfUnitRows
from longmix.modeling.derivatives import by_autograd

STEP = 2e-6


@pytest.fixture(autouse=True)
def differentiable_parts(monkeypatch):
    """What a model is made of has second derivatives: torch's fast attention, and kernels, refuse them."""
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    with sdpa_kernel(SDPBackend.MATH):
        yield


def compare(model, lengths, batch):
    model = model.double()
    input_ids, mask = batch(lengths, 19)
    inputs = {"input_ids": input_ids, "attention_mask": mask.long()}
    if dimensions := getattr(model.config, "coordinate_dimensions", None):
        inputs["coordinates"] = torch.randn(2, 19, dimensions, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    direction = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in parameters.values()]

    def gradients(step, create_graph=False):
        with torch.no_grad():
            for parameter, along in zip(parameters.values(), direction, strict=True):
                parameter.add_(along, alpha=step)
        total = model(**inputs).last_hidden_state.sin().sum()
        options = {"create_graph": create_graph, "allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(total, list(parameters.values()), **options)

    slope = sum((one * along).sum() for one, along in zip(gradients(0, True), direction, strict=True))
    found = torch.autograd.grad(slope, list(parameters.values()), allow_unused=True, materialize_grads=True)
    above, below = gradients(STEP), gradients(-2 * STEP)
    for name, one, high, low in zip(parameters, found, above, below, strict=True):
        difference = (high - low) / (2 * STEP)
        error = (one - difference).abs().max() / difference.abs().max().clamp_min(1e-3)
        assert error < 1e-4, f"{name}: {error:.1e}"


def test_of_every_type(model_type, make_model, batch):
    compare(make_model(model_type), [19, 12], batch)


@pytest.mark.full
def test_of_every_variant(variant, make_model, batch):
    model_type, fields = variant
    # Without padding: ScaleNorm and FixNorm have no second derivative at a token of zeros, and answer NaN.
    compare(make_model(model_type, **fields), [19, 19], batch)


def test_an_input_that_is_given_twice_has_two_gradients():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    first, second = by_autograd(lambda one, other: one.square() * other, [x, x], [torch.ones(2)])
    torch.testing.assert_close((first, second), (2 * x * x, x * x))
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], 4 * x)


def test_a_graph_of_autocast_is_differentiated_behind_it():
    """Of rows in half precision, whose weights are not: backward passes lie outside of autocast."""
    layer = LinearOfUnitRows(4, 3, 0.5, 1e-5)
    rows = torch.randn(1, 5, 4)

    def penalty(x, dtype, backward_inside):
        x = x.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            total = layer(x).sin().sum()
            if backward_inside:
                (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        if not backward_inside:
            (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(gradient.float().square().sum(), x)[0].float()

    exact = penalty(rows, torch.float32, False)
    for inside in (True, False):
        found = penalty(rows, torch.bfloat16, inside)
        assert (found - exact).norm() < 0.05 * exact.norm()
