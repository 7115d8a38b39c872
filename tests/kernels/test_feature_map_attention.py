"""Attention from features of queries and keys: the equations, what padding holds, layouts, NaN, and mistakes."""

import math

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import obstacle

FEATURE_MAPS = ("elu", "relu")


@pytest.fixture(params=["reference", "portable", "cpu", "triton"])
def choose(request, monkeypatch, require_or_skip):
    """One implementation from now on."""
    if request.param in ("cpu", "triton"):
        reason = obstacle("feature_map_attention", request.param, "cpu")
        if reason is not None:
            require_or_skip({"cpu": "compiler", "triton": "triton"}[request.param], reason)
    monkeypatch.setenv("LONGMIX_KERNELS", request.param)


def tensors(batch=2, heads=2, positions=9, width=3, channels=4, dtype=torch.float32):
    """query, key and value, all with gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = batch, heads, positions
    shapes = (*rows, width), (*rows, width), (*rows, channels)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("feature_map", "written"),
    [
        ("elu", lambda x: x + 1 if x > 0 else math.exp(x)),
        ("relu", lambda x: max(x / 2**0.25, 0) + 0.001),
    ],
)
def test_the_weights_are_those_of_the_features(choose, feature_map, written):
    """One query and three keys of two channels, written out."""
    query, keys = [0.5, -2.0], [[1.0, 0.25], [-0.5, 3.0], [-1.0, -4.0]]
    weights = [sum(written(q) * written(k) for q, k in zip(query, key, strict=True)) for key in keys]
    expected = (weights[0] - weights[1] + 2 * weights[2]) / sum(weights)
    value = torch.tensor([1.0, -1.0, 2.0])[None, None, :, None]
    rows = torch.tensor([query] * 3)[None, None]
    found = ops.feature_map_attention(rows, torch.tensor(keys)[None, None], value, feature_map)
    torch.testing.assert_close(found, torch.full((1, 1, 3, 1), expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_rows_past_the_lengths_may_hold_anything(choose, feature_map):
    lengths = torch.tensor([9, 4])
    found = []
    for filling in (0.0, torch.nan):
        given = tensors()
        with torch.no_grad():
            for rows in given:
                rows[1, :, 4:] = filling
        result = ops.feature_map_attention(*given, feature_map, lengths)
        found.append([result, *torch.autograd.grad(result.square().sum(), given)])
    for of_zeros, of_nan in zip(*found, strict=True):
        assert torch.equal(of_zeros, of_nan)
        assert (of_nan[1, :, 4:] == 0).all()


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_comes_through(choose, feature_map, place):
    given = [x.detach() for x in tensors()]
    given[place][0, 1, 2, 0] = torch.nan
    found = ops.feature_map_attention(*given, feature_map)
    assert found[0, 1, 2, 0].isnan() and not found[0, 0].isnan().any() and not found[1].isnan().any()


def test_small_features_do_not_vanish_in_fp16(choose):
    """Of the first key it is exp(-20), of the second exp(-21); fp16 has zeros there."""
    key = torch.tensor([-20.0, -21.0], dtype=torch.float16)[None, None, :, None]
    value = torch.tensor([1.0, 0.0], dtype=torch.float16)[None, None, :, None]
    found = ops.feature_map_attention(torch.zeros_like(key), key, value, "elu")
    torch.testing.assert_close(found.float(), torch.full((1, 1, 2, 1), 1 / (1 + math.exp(-1))), rtol=1e-3, atol=0)


def test_far_queries_weigh_as_near_ones_do(choose):
    """Features of exp(-30) each, whose ratio is that of the keys alone."""
    query, key = torch.full((1, 1, 2, 3), -30.0), torch.tensor([[-30.0] * 3, [-31.0] * 3])[None, None]
    found = ops.feature_map_attention(query, key, torch.tensor([1.0, 0.0])[None, None, :, None], "elu")
    torch.testing.assert_close(found, torch.full((1, 1, 2, 1), 1 / (1 + math.exp(-1))), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_has_a_slope_however_small_a_number_is(choose, dtype):
    """Beside the shift of 0.001 these numbers vanish."""
    query = torch.ones(1, 1, 2, 1, dtype=dtype)
    key = torch.tensor([3e-11, -3e-11], dtype=dtype)[None, None, :, None].requires_grad_()
    value = torch.tensor([1.0, 0.0], dtype=dtype)[None, None, :, None]
    ops.feature_map_attention(query, key, value, "relu")[0, 0, 0, 0].backward()
    # Of weights a and b, a / (a + b) by a: b / (a + b)^2, and both features are 0.001.
    torch.testing.assert_close(key.grad.float()[0, 0, :, 0], torch.tensor([250.0, 0.0]), rtol=1e-2, atol=0)


def test_autocast_changes_nothing(choose):
    given = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ops.feature_map_attention(*given, "elu")
    assert torch.equal(found, ops.feature_map_attention(*given, "elu"))


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_rows_may_lie_between_others(choose, feature_map, relative_rms):
    """As a layer's projection has them: results and gradients are those of copies that lie side by side."""
    projected = torch.randn(2, 40, 3, 2, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found = []
    for copied in (False, True):
        rows = [x.transpose(1, 2) for x in projected.unbind(2)]
        result = ops.feature_map_attention(*(x.contiguous() if copied else x for x in rows), feature_map)
        found.append([result, *torch.autograd.grad(result.square().sum(), projected)])
    for one, other in zip(*found, strict=True):
        assert relative_rms(one, other) < 1e-6


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_arguments_of_several_dtypes(choose, feature_map, relative_rms):
    query, key, value = (x.detach() for x in tensors())
    leaves = [query.bfloat16(), key.half(), value.double()]
    leaves = [x.requires_grad_() for x in leaves]
    result = ops.feature_map_attention(*leaves, feature_map)
    gradients = torch.autograd.grad(result.sum(), leaves)
    assert [x.dtype for x in (result, *gradients)] == [torch.float64, torch.bfloat16, torch.float16, torch.float64]
    truth = ops.feature_map_attention(*(x.detach().double() for x in leaves), feature_map)
    assert relative_rms(result, truth) < 1e-12


def test_mistakes_are_refused():
    query, key, value = tensors()
    with pytest.raises(ValueError, match="feature_map is 'softplus'; allowed: elu, relu"):
        ops.feature_map_attention(query, key, value, "softplus")
    with pytest.raises(ValueError, match="query, key and value have shapes"):
        ops.feature_map_attention(query, key[:, :, 1:], value, "elu")
    with pytest.raises(ValueError, match=r"lengths has dtype torch\.float32"):
        ops.feature_map_attention(query, key, value, "elu", torch.ones(2))
