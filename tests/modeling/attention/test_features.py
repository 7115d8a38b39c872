"""FAVOR+: orthogonal projections, and an unbiased estimate of the softmax kernel."""

import math

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.random_attention.portable import log_features
from longmix.modeling.attention import orthogonal_projection


def draw(seed, features, width):
    return orthogonal_projection(features, width, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("features", "width"), [(1, 1), (3, 8), (8, 8), (20, 8), (5, 2)])
def test_rows_are_orthogonal_in_blocks(features, width):
    projection = draw(0, features, width)
    assert projection.shape == (features, width) and projection.dtype == torch.float32
    for start in range(0, features, width):
        products = projection[start : start + width] @ projection[start : start + width].T
        torch.testing.assert_close(products, torch.diag(products.diagonal()), rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(projection) == min(features, width)


@pytest.mark.parametrize("features", [2, 4])
def test_each_row_is_standard_normal(features):
    rows = torch.stack([draw(seed, features, 4) for seed in range(4000)])
    # Every entry by itself: signs and lengths that follow a convention would show in its mean and variance.
    assert rows.mean(0).abs().max() < 4.5 / math.sqrt(4000)
    assert (rows.square().mean(0) - 1).abs().max() < 4.5 * math.sqrt(2 / 4000)
    lengths = rows.square().sum(2)
    assert abs(lengths.var().item() / (2 * 4) - 1) < 0.15


def test_few_features_of_a_large_width_are_few_numbers(count_elements):
    with count_elements() as count:
        assert draw(0, 3, 500).shape == (3, 500)
    assert count.largest <= 2 * 3 * 500


def test_the_estimate_of_the_kernel_is_unbiased():
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 6, 8, generator=generator, dtype=torch.float64) / 2  # larger ones have heavy tails
    truth = torch.exp(query @ key.T / math.sqrt(8))
    estimates = []
    for seed in range(2000):
        projection = draw(seed, 16, 8)
        features = [log_features(x, projection).exp() / math.sqrt(16) for x in (query, key)]
        estimates.append(features[0] @ features[1].T)
    estimates = torch.stack(estimates)
    error = (estimates.mean(0) - truth) / (estimates.std(0) / math.sqrt(2000))
    assert error.abs().max() < 4.5


def test_features_are_wide_and_keep_float64():
    projection = draw(0, 5, 4)
    x = torch.randn(2, 1, 3, 4)
    truth = log_features(x.double(), projection)
    assert truth.dtype == torch.float64
    assert log_features(x.bfloat16(), projection).dtype == torch.float32
    torch.testing.assert_close(log_features(x, projection).double(), truth, rtol=0, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ops.random_feature_attention(x, x, x, projection)
    assert torch.equal(result, ops.random_feature_attention(x, x, x, projection))


def test_performer_draws_by_layer_and_name(make):
    first = make("performer", layer_index=1, names=("band", 0))
    torch.manual_seed(5)
    again = make("performer", layer_index=1, names=("band", 0))
    assert torch.equal(first.directions, again.directions)
    assert torch.equal(first.state_dict()["directions"], first.directions)
    others = [
        make("performer", layer_index=1, names=("band", 1)),
        make("performer", layer_index=2, names=("band", 0)),
        make("performer", layer_index=1, names=("band", 0), buffer_seed=1),
    ]
    assert all(not torch.equal(first.directions, other.directions) for other in others)
    assert first.directions.shape == (int(8 * math.log(8)), 8)
    assert make("performer", hidden_size=4, num_attention_heads=4).directions.shape == (1, 1)
    assert make("performer", num_random_features=3).directions.shape == (3, 8)
