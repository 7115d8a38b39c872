"""Attention to the nearest tokens: scores so large that few weights are above zero."""

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import obstacle


@pytest.mark.parametrize("name", ["portable", "triton"])
def test_gradients_of_large_scores_are_as_exact_as_their_rounding(name, monkeypatch, require_or_skip):
    """The gradients of a row's scores sum to zero, also where fp32 has the size of its exponentials to 1e-5 alone."""
    if name == "triton" and (reason := obstacle("near_attention", name, "cpu")) is not None:
        require_or_skip("triton", reason)
    generator = torch.Generator().manual_seed(0)
    query, key, value, estimate = torch.randn(4, 2, 3, 11, 8, generator=generator).unbind(0)
    rows = [10 * query, 10 * key, value, estimate, torch.randn(3, 5, generator=generator), torch.zeros(3)]
    cotangent, found = torch.randn(value.shape, generator=generator), {}
    for implementation, dtype in ((name, torch.float32), ("reference", torch.float64)):
        monkeypatch.setenv("LONGMIX_KERNELS", implementation)
        leaves = [tensor.to(dtype).requires_grad_() for tensor in rows]
        result = ops.near_attention(*leaves, 2)
        found[implementation] = torch.autograd.grad(result, leaves, cotangent.to(dtype))
    for gradient, truth in zip(found[name], found["reference"], strict=True):
        assert (gradient - truth).norm() < 1e-5 * truth.norm()
