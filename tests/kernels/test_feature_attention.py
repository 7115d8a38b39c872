"""Attention from log-features: features far beyond the range of their exponentials, and the softmax that they estimate.

What it shares with `linear_attention` stands in test_linear_attention.py.
"""

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.random_attention.portable import log_features
from longmix.modeling.attention import orthogonal_projection


def relative_rms(value, truth):
    return ((value.double() - truth.double()).square().mean().sqrt() / truth.double().square().mean().sqrt()).item()


def falling(size):
    """Keys of 80 at first, -80 in the end."""
    return torch.where(torch.arange(200) < 100, size, -size)[:, None].expand(200, 6)


def rising(size):
    """The other way round: on the scale of the last keys the first ones vanish."""
    return -falling(size)


def alternating(size):
    return torch.where(torch.arange(200) % 2 == 1, size, -size)[:, None].expand(200, 6)


def random(size):
    return size * (2.0 * torch.randint(0, 2, (200, 6), generator=torch.Generator().manual_seed(0)) - 1)


@pytest.mark.parametrize("keys", [falling, rising, alternating, random])
@pytest.mark.parametrize("size", [80.0, 2000.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_features_beyond_the_range_of_exponentials(keys, size, causal, with_documents, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    key = (keys(size) + torch.randn(200, 6, generator=generator))[None, None]
    query = size * (2 * torch.rand(1, 1, 200, 6, generator=generator) - 1)
    value = torch.randn(1, 1, 200, 3, generator=generator)
    documents = (torch.arange(200) // 37)[None] if with_documents else None
    lengths = torch.tensor([190])
    cotangent = torch.randn(value.shape, generator=generator)
    results = []
    for name in ("reference", "portable", "cpu"):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        tensors = [x.clone().requires_grad_() for x in (query, key, value)]
        result = ops.feature_attention(*tensors, lengths, causal, documents)
        results.append((result, *torch.autograd.grad(result, tensors, cotangent)))
    # Rounding a feature of 2000 to fp32 is an error of 1e-4 in its exponential.
    tolerances = (1e-5, 1e-4, 1e-4, 1e-4) if size < 100 else (1e-3,) * 4
    for found in results[1:]:
        for mine, truth, tolerance in zip(found, results[0], tolerances, strict=True):
            assert mine.isfinite().all()
            assert relative_rms(mine, truth) < tolerance


@pytest.mark.parametrize("causal", [False, True])
def test_constants_cancel(causal):
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 2, 3, 70, 5, generator=generator, dtype=torch.float64)
    value = torch.randn(2, 3, 70, 4, generator=generator, dtype=torch.float64)
    of_each_query = 300 * torch.randn(2, 3, 70, 1, generator=generator, dtype=torch.float64)
    plain = ops.feature_attention(query, key, value, causal=causal)
    shifted = ops.feature_attention(query + of_each_query, key - 1e3, value, causal=causal)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_many_random_features_are_softmax_attention(causal):
    """The error against softmax attention falls with the square root of the number of features."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 1, 1, 50, 8, generator=generator, dtype=torch.float64) / 2
    truth = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    errors = []
    for features in (64, 1024):
        squares = 0.0
        for seed in range(16):
            projection = orthogonal_projection(features, 8, torch.Generator().manual_seed(seed))
            logs = (log_features(x, projection) for x in (query, key))
            squares += (ops.feature_attention(*logs, value, causal=causal) - truth).square().mean().item()
        errors.append((squares / 16) ** 0.5)
    assert errors[1] < 0.1 * truth.square().mean().sqrt()
    assert 3 < errors[0] / errors[1] < 5.3  # 4 = sqrt(1024 / 64)
