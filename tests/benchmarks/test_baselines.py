"""The papers' algorithms against the operations' references, in float64."""

import pytest
import torch

from longmix.kernels import ops

FILTERS = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def draw(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def rotations(batch, positions, heads, orders, width):
    angles = (batch, heads, orders, positions - 1, 3)
    return draw((batch, positions, heads, width, 2), angles, angles, (batch, heads, positions))


def features(batch, heads, positions, count, width):
    return draw(*[(batch, heads, positions, count)] * 2, (batch, heads, positions, width))


def positive(batch, heads, positions, count, width):
    query, key, value = features(batch, heads, positions, count, width)
    return query.exp(), key.square(), value


CASES = {
    "givens_mix-one": ("givens_mix", rotations(1, 1, 1, 1, 3), {}),
    "givens_mix-two": ("givens_mix", rotations(2, 2, 1, 1, 1), {}),
    "givens_mix-odd": ("givens_mix", rotations(2, 13, 1, 1, 5), {}),
    "givens_mix-even": ("givens_mix", rotations(1, 22, 1, 1, 2), {}),
    "givens_mix-orders": ("givens_mix", rotations(2, 19, 3, 2, 4), {}),
    "link_mix-chord": ("link_mix", [*draw((2, 13, 5), (2, 13, 3, 4)), torch.tensor([[0, 1, 2, 4]] * 3)], {}),
    "link_mix-around": ("link_mix", [*draw((1, 7, 3), (1, 7, 2, 3)), torch.tensor([[0, -1, 40], [3, 3, -9]])], {}),
    "analysis": ("wavelet_analysis", [*draw((2, 23, 5)), FILTERS, 1], {}),
    "analysis-levels": ("wavelet_analysis", [*draw((2, 21, 5)), FILTERS, 3], {}),
    "analysis-long-filter": ("wavelet_analysis", [*draw((2, 5, 3), (14,)), 2], {}),
    "synthesis": ("wavelet_synthesis", [*draw((48, 5)), FILTERS, 1, 2, 23], {}),
    "synthesis-levels": ("wavelet_synthesis", [*draw((48, 5)), FILTERS, 3, 2, 21], {}),
    "synthesis-long-filter": ("wavelet_synthesis", [*draw((16, 3), (14,)), 2, 2, 5], {}),
    "feature_attention": ("feature_attention", features(2, 2, 11, 4, 3), {}),
    "feature_attention-causal": ("feature_attention", features(2, 2, 11, 4, 3), {"causal": True}),
    "random_feature_attention": (
        "random_feature_attention",
        draw(*[(2, 3, 9, 4)] * 2, (2, 3, 9, 5), (6, 4), (1, 1, 9, 2), (2, 3, 2, 6)),
        {},
    ),
    "random_feature_attention-causal": (
        "random_feature_attention",
        draw(*[(2, 1, 7, 4)] * 2, (2, 1, 7, 5), (6, 4)),
        {"causal": True},
    ),
    "token_givens_mix": ("token_givens_mix", draw((2, 11, 3, 4, 2), (2, 11, 3, 7), (3, 4), *[(3, 7)] * 2), {}),
    "token_givens_mix-alone": (
        "token_givens_mix",
        draw((1, 6, 2, 3, 2), (1, 6, 2, 7), (2, 2), *[(2, 7)] * 2),
        {"without_own": True},
    ),
    "linear_attention": ("linear_attention", positive(2, 3, 9, 4, 5), {}),
    "linear_attention-causal": ("linear_attention", positive(2, 3, 9, 4, 5), {"causal": True}),
}


def result_and_gradients(function, arguments, keywords):
    arguments = [
        argument.clone().requires_grad_(argument.is_floating_point()) if torch.is_tensor(argument) else argument
        for argument in arguments
    ]
    result = function(*arguments, **keywords)
    (cotangent,) = draw(result.shape)
    leaves = [argument for argument in arguments if torch.is_tensor(argument) and argument.requires_grad]
    return [result.detach(), *torch.autograd.grad(result, leaves, cotangent, materialize_grads=True)]


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference_with_its_gradients(script, case, monkeypatch):
    operation, arguments, keywords = CASES[case]
    baselines = script("kernel.baselines")
    # Small ones, so that there are several.
    monkeypatch.setattr(baselines, "ROWS", 5)
    monkeypatch.setattr(baselines, "BLOCK", 100)
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    expected = result_and_gradients(getattr(ops, operation), arguments, keywords)
    found = result_and_gradients(getattr(baselines, operation), arguments, keywords)
    for truth, tensor in zip(expected, found, strict=True):
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, truth, rtol=1e-10, atol=1e-10)
