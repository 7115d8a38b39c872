"""Nothing in, nothing out, and every floating argument has a gradient all the same: of zeros."""

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import OPERATIONS, obstacle

# Operation -> (its result, from floating arguments of the shapes for B, N, D).
CALLS = {
    "feature_attention": (ops.feature_attention, lambda b, n, d: [(b, 2, n, 3), (b, 2, n, 3), (b, 2, n, d)]),
    "feature_map_attention": (
        lambda query, key, value, lengths: ops.feature_map_attention(query, key, value, "elu", lengths),
        lambda b, n, d: [(b, 2, n, 3), (b, 2, n, 3), (b, 2, n, d)],
    ),
    "givens_mix": (
        ops.givens_mix,
        lambda b, n, d: [(b, n, 2, d, 2), *[(b, 2, 1, max(n - 1, 0), 3)] * 2, (b, 2, n)],
    ),
    "lifting_analysis": (
        lambda x, predict, update, lengths: ops.lifting_analysis(x, predict, update, 1, lengths).view(x.shape),
        lambda b, n, d: [(b, n, d), (3, d), (3, d)],
    ),
    "lifting_synthesis": (
        lambda x, predict, update, lengths: ops.lifting_synthesis(
            x.flatten(0, 1), predict, update, 1, *x.shape[:2], lengths
        ),
        lambda b, n, d: [(b, n, d), (3, d), (3, d)],
    ),
    "linear_attention": (ops.linear_attention, lambda b, n, d: [(b, 2, n, 3), (b, 2, n, 3), (b, 2, n, d)]),
    "link_mix": (
        lambda value, weights, lengths: ops.link_mix(value, weights, torch.ones(2, 3, dtype=torch.int64), lengths),
        lambda b, n, d: [(b, n, d), (b, n, 2, 3)],
    ),
    "near_attention": (
        lambda query, key, value, estimate, bias, share_logit, lengths: ops.near_attention(
            query, key, value, estimate, bias, share_logit, 1, lengths
        ),
        lambda b, n, d: [*[(b, 2, n, 3)] * 2, *[(b, 2, n, d)] * 2, (2, 3), (2,)],
    ),
    "random_feature_attention": (
        lambda query, key, value, projection, waves, columns, lengths: ops.random_feature_attention(
            query, key, value, projection, waves, columns, lengths=lengths
        ),
        lambda b, n, d: [*[(b, 2, n, 3)] * 2, (b, 2, n, d), (4, 3), (1, 1, n, 5), (2, 2, 5, 4)],
    ),
    "spectral_filter": (
        lambda x, spectrum, lengths: ops.spectral_filter(x, spectrum, 8, None, lengths),
        lambda b, n, d: [(b, n, d), (5, d, 2)],
    ),
    "token_givens_mix": (
        lambda value, drawn, coefficients, lengths: ops.token_givens_mix(
            value, drawn, coefficients, torch.ones(2, 7), torch.ones(2, 7), lengths=lengths
        ),
        lambda b, n, d: [(b, n, 2, d, 2), (b, n, 2, 7), (2, 3)],
    ),
    "wavelet_analysis": (
        lambda x, filters, lengths: ops.wavelet_analysis(x, filters, 1, lengths).view(x.shape),
        lambda b, n, d: [(b, n, d), (4, d)],
    ),
    "wavelet_synthesis": (
        lambda x, filters, lengths: ops.wavelet_synthesis(x.flatten(0, 1), filters, 1, *x.shape[:2], lengths),
        lambda b, n, d: [(b, n, d), (4,)],
    ),
}


@pytest.fixture(params=["reference", "portable", "cpu"])
def choose(request, monkeypatch, require_or_skip):
    """choose(operation): one implementation of it from now on."""

    def decide(operation):
        if request.param == "cpu" and (reason := obstacle(operation, "cpu", "cpu")) is not None:
            if not reason.startswith("it has no"):
                require_or_skip("compiler", reason)
            pytest.skip(reason)
        monkeypatch.setenv("LONGMIX_KERNELS", request.param)

    return decide


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(0, 6, 4), (2, 0, 4), (2, 6, 0)])
def test_empty_values(operation, shape, choose):
    choose(operation)
    call, shapes = CALLS[operation]
    tensors = [torch.full(size, torch.nan, requires_grad=True) for size in shapes(*shape)]
    for lengths in (None, torch.ones(shape[0], dtype=torch.int32)):
        result = call(*tensors, lengths=lengths)
        assert result.shape == tensors[2 if operation.endswith("attention") else 0].shape
        for tensor, gradient in zip(tensors, torch.autograd.grad(result.sum(), tensors), strict=True):
            assert gradient.shape == tensor.shape and not gradient.any()


@pytest.mark.parametrize(("factors", "links"), [(0, 3), (2, 0)])
def test_no_links(factors, links, choose):
    choose("link_mix")
    value = torch.randn(2, 5, 3, requires_grad=True)
    weights = torch.ones(2, 5, factors, links, requires_grad=True)
    offsets, kept = torch.zeros(factors, links, dtype=torch.int64), torch.ones(2, 5, 1)
    for lengths in (None, torch.tensor([5, 2])):
        if lengths is not None:
            kept[1, 2:] = 0
        result = ops.link_mix(value, weights, offsets, lengths)
        assert torch.equal(result, value * kept)
        gradients = torch.autograd.grad(result.sum(), (value, weights))
        assert torch.equal(gradients[0], kept.expand(2, 5, 3)) and gradients[1].shape == weights.shape
