"""Attention from log-features: features far beyond the range of their exponentials, and the softmax that they estimate.

What it shares with `linear_attention` stands in test_linear_attention.py.
"""

import importlib

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.random_attention.portable import log_features
from longmix.kernels.selection import obstacle
from longmix.modeling.attention import orthogonal_projection


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
def test_features_beyond_the_range_of_exponentials(keys, size, causal, with_documents, relative_rms, monkeypatch):
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


@pytest.fixture
def launchers(monkeypatch, require_or_skip):
    """The launchers of Triton's kernels, which run."""
    if (reason := obstacle("feature_attention", "triton", "cpu")) is not None:
        require_or_skip("triton", reason)
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    return importlib.import_module("longmix.kernels.attention.gpu_kernels")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("tensor_cores", [False, True])
def test_half_precision_is_rounded_to_the_nearest(causal, with_documents, tensor_cores, launchers, monkeypatch):
    """Means of ones, in fp32: where digits were cut off, all of them would be smaller, by 1e-3 on the mean."""
    monkeypatch.setattr(launchers, "multiply_tf32", lambda: tensor_cores)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 2, 1, 19, 32, generator=generator)
    lengths, documents = torch.tensor([19, 11]), (torch.arange(19) // 8).repeat(2, 1) if with_documents else None
    value, result = torch.ones(2, 1, 19, 4, dtype=torch.float16), torch.empty(2, 1, 19, 4)
    launchers.attend(result, query, key, value, lengths, documents, causal, "logarithms")
    means = torch.cat([result[0, 0], result[1, 0, :11]])
    assert (means - 1).abs().max() < (1e-3 if tensor_cores else 1e-6)
    assert (means - 1).mean().abs() < 1e-4


@pytest.mark.parametrize(("causal", "with_documents"), [(False, False), (False, True), (True, False), (True, True)])
def test_factors_of_tensor_cores_have_their_digits(causal, with_documents, launchers, monkeypatch):
    """They would cut off the others: the last 13 bits of fp32."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    multiply, beyond = interpreter.InterpreterBuilder.create_dot, []

    def checked(self, left, right, sums, precision, *rest):
        assert str(precision).endswith("TF32")
        beyond.extend(int((factor.data.view("int32") & 0x1FFF).any()) for factor in (left, right))
        return multiply(self, left, right, sums, precision, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", checked)
    monkeypatch.setattr(launchers, "multiply_tf32", lambda: True)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 40, 32, generator=generator)
    value, gradient = torch.randn(2, 1, 1, 40, 16, generator=generator).half()
    documents = (torch.arange(40) // 29)[None] if with_documents else None
    arguments = query, key, value, torch.tensor([37]), documents, causal, True
    launchers.attend(torch.empty_like(value), *arguments)
    launchers.attention_backward(gradient, *arguments)
    assert len(beyond) > 20 and sum(beyond) == 0


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1], ids=["usual", "an NVIDIA card's", "negative"])
def test_nan_passes_through_tensor_cores(bits, launchers):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1, 1, 20, 4, generator=generator).half().requires_grad_()
    query, key = torch.rand(2, 1, 1, 20, 16, generator=generator)
    query.view(torch.int32)[0, 0, 7, 3] = bits
    result = ops.linear_attention(query, key, value)
    assert result[0, 0, 7].isnan().all() and result[0, 0, :7].isfinite().all()
    assert torch.autograd.grad(result, value, torch.ones_like(result))[0].isnan().all()
    key.view(torch.int32)[0, 0, 9, 3] = bits
    assert ops.linear_attention(query, key, value).isnan().all()
