"""Attention from random features: what padding holds, places, documents of many tokens, and mistakes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.kernels import ops
from longmix.kernels.random_attention.places import Places
from longmix.kernels.selection import obstacle


@pytest.fixture(params=["portable", "cpu", "triton"])
def choose(request, monkeypatch, require_or_skip):
    """One implementation from now on."""
    if request.param != "portable":
        reason = obstacle("random_feature_attention", request.param, "cpu")
        if reason is not None:
            require_or_skip({"cpu": "compiler", "triton": "triton"}[request.param], reason)
    monkeypatch.setenv("LONGMIX_KERNELS", request.param)


def tensors(batch=2, heads=2, positions=9, width=3, features=5, channels=4, waves=2):
    """query, key, value, projection, waves and columns, all with gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = batch, heads, positions
    shapes = (*rows, width), (*rows, width), (*rows, channels), (features, width), (1, 1, positions, waves)
    shapes += ((2, heads, waves, features),)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def test_rows_past_the_lengths_may_hold_anything(choose):
    lengths = torch.tensor([9, 4])
    found = []
    for filling in (0.0, torch.nan):
        given = tensors()
        with torch.no_grad():
            for rows in given[:3]:
                rows[1, :, 4:] = filling
        result = ops.random_feature_attention(*given, lengths=lengths)
        found.append([result, *torch.autograd.grad(result.square().sum(), given)])
    for of_zeros, of_nan in zip(*found, strict=True):
        assert torch.equal(of_zeros, of_nan)
    for gradient in found[1][1:4]:
        assert (gradient[1, :, 4:] == 0).all()


def test_places_out_of_range_are_the_first_and_the_last(choose):
    given = tensors()
    places = torch.arange(9).expand(2, 9) * 3 - 7
    result, expected = (
        ops.random_feature_attention(*given, positions=positions) for positions in (places, places.clamp(0, 8))
    )
    assert torch.equal(result, expected)
    gradients = (torch.autograd.grad(x.square().sum(), given) for x in (result, expected))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_tokens_at_one_place_are_shared_by_several_programs(choose, relative_rms, monkeypatch):
    """As of many short documents, whose tokens all stand at the first places; there is one that no token has."""
    given = tensors(batch=3, positions=17)
    places = torch.randint(0, 3, (3, 17), generator=torch.Generator().manual_seed(1))
    places[places == 1] = 0
    found = []
    for name in (None, "reference"):
        if name is not None:
            monkeypatch.setenv("LONGMIX_KERNELS", name)
        result = ops.random_feature_attention(*given, positions=places)
        found.append([result, *torch.autograd.grad(result.square().sum(), given)])
    for one, other in zip(*found, strict=True):
        assert relative_rms(one, other) < 1e-4


def test_the_weights_are_those_of_the_features(choose):
    """One feature of one channel, written out: phi(x) = exp(w x - x^2 / 2 + b), by its place."""
    query, key = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.25, -0.5])
    waves, columns = torch.tensor([0.3, -0.2]), torch.tensor([0.7, 1.5])
    places = torch.tensor([1, 0, 1])
    scores = 0.8 * query[:, None] + 0.8 * key - key.square() / 2 + columns[1] * waves[places]
    expected = scores.softmax(1)
    result = ops.random_feature_attention(
        query.view(1, 1, 3, 1),
        key.view(1, 1, 3, 1),
        torch.eye(3)[None, None],
        torch.tensor([[0.8]]),
        waves.view(1, 1, 2, 1),
        columns.view(2, 1, 1, 1),
        places[None],
    )
    torch.testing.assert_close(result[0, 0], expected)


def test_the_features_lie_in_no_memory(require_or_skip):
    """Of the forward pass in Triton, all of whose tensors are seen here: those of queries or keys would be the largest
    but the tables of biases.
    """
    reason = obstacle("random_feature_attention", "triton", "cpu")
    if reason is not None:
        require_or_skip("triton", reason)
    from longmix.kernels.random_attention.gpu_kernels import random_attention

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.append(result.nbytes if isinstance(result, torch.Tensor) else 0)
            return result

    batch, heads, positions, features = 3, 2, 384, 32
    query, key, value = torch.randn(3, batch, heads, positions, 4)
    projection, waves, columns = (
        torch.randn(s) for s in ((features, 4), (1, 1, positions, 3), (2, heads, 3, features))
    )
    with Sizes():
        random_attention(query, key, value, projection, waves, columns, None, None, None, None, None, False)
    of_queries = 4 * batch * heads * positions * features
    of_tables = 2 * of_queries // batch
    assert 0 < max(size for size in sizes if size != of_tables) < of_queries / 2


def test_without_tensor_cores_features_take_channels_some_at_a_time(require_or_skip, relative_rms, monkeypatch):
    """As on cards before A100."""
    reason = obstacle("random_feature_attention", "triton", "cpu")
    if reason is not None:
        require_or_skip("triton", reason)
    monkeypatch.setattr("longmix.kernels.attention.features_gpu.multiply_tf32", lambda: False)
    found = []
    for name in ("triton", "reference"):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        given = tensors(width=37)
        result = ops.random_feature_attention(*given)
        found.append([result, *torch.autograd.grad(result.square().sum(), given)])
    for mine, truth in zip(*found, strict=True):
        assert relative_rms(mine, truth) < 1e-4


@pytest.mark.parametrize("compiled", [False, True])
def test_a_backward_pass_under_autocast_has_the_same_gradients(require_or_skip, monkeypatch, compiled):
    """In Triton, which makes the tables of biases again; also one that a compiler traces there."""
    reason = obstacle("random_feature_attention", "triton", "cpu")
    if reason is not None:
        require_or_skip("triton", reason)
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")

    def gradients(under):
        given = tensors()
        attend = ops.random_feature_attention
        with torch.autocast("cpu", torch.bfloat16, enabled=under):
            loss = (torch.compile(attend, backend="aot_eager") if compiled else attend)(*given).square().sum()
            if not compiled:
                return torch.autograd.grad(loss, given)
        return torch.autograd.grad(loss, given)

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("places", [8, 9])
def test_gradients_of_columns_are_summed_up_in_parts(samples, heads, places, monkeypatch):
    from longmix.kernels.random_attention import tables

    monkeypatch.setattr(tables, "PLACES", 4)
    waves = torch.randn(samples, heads, places, 2, dtype=torch.float64, requires_grad=True)
    columns = torch.randn(2, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.einsum("bhpw,ahwm->bahpm", waves.expand(samples, 3, places, 2), columns)
    found = tables.tables_of(waves, columns)
    cotangent = torch.randn_like(found)
    mine = tables.gradients_of(cotangent, waves, columns, (True, True))
    pairs = zip(mine, torch.autograd.grad(expected, (waves, columns), cotangent), strict=True)
    assert torch.allclose(found, expected) and all(torch.allclose(one, other) for one, other in pairs)


def test_tokens_by_their_places_are_found_once():
    places = Places(torch.tensor([[0, 1, 0, 3], [0, 1, 1, 3]]), 5)
    order, starts = places.order()
    assert order.tolist() == [0, 2, 4, 1, 5, 6, 3, 7] and starts.tolist() == [0, 3, 6, 6, 8, 8]
    assert places.order() is places.order()


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (3, (5, 4), r"query and projection have shapes \(2, 2, 9, 3\) and \(5, 4\); needed"),
        (3, (0, 3), "with m at least 1"),
        (4, (1, 1, 8, 2), r"waves has shape \(1, 1, 8, 2\); allowed: \(1 or 2, 1 or 2, 9, w\)"),
        (4, (3, 1, 9, 2), r"waves has shape \(3, 1, 9, 2\)"),
        (5, (2, 2, 2, 4), r"columns has shape \(2, 2, 2, 4\); needed: \(2, 2, 2, 5\)"),
        (5, (2, 1, 2, 5), r"columns has shape \(2, 1, 2, 5\); needed: \(2, 2, 2, 5\)"),
        (1, (2, 2, 9, 4), "query, key and value have shapes"),
    ],
)
def test_shapes_that_do_not_fit(index, shape, message):
    given = tensors()
    given[index] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        ops.random_feature_attention(*given)


@pytest.mark.parametrize(("shape", "count"), [((2, 8), 9), ((1, 9), 9), ((2, 9), 10)])
def test_places_of_other_waves_are_refused(shape, count):
    places = Places(torch.zeros(shape, dtype=torch.int64), count)
    with pytest.raises(ValueError, match=rf"positions has shape \({shape[0]}, {shape[1]}\) and {count} places for 9"):
        ops.random_feature_attention(*tensors(), positions=places)


def test_parts_of_biases_are_refused():
    query, key, value, projection, waves, *_ = tensors()
    for more in ({"waves": waves}, {"positions": torch.zeros(2, 9, dtype=torch.int64)}):
        with pytest.raises(ValueError, match="given is only a part of waves and columns"):
            ops.random_feature_attention(query, key, value, projection, **more)
    given = tensors(batch=2)
    given[4] = torch.zeros(2, 1, 9, 2)
    with pytest.raises(ValueError, match=r"waves has shape \(2, 1, 9, 2\); allowed: \(1, 1 or 2, P, w\)"):
        ops.random_feature_attention(*given, positions=torch.zeros(2, 9, dtype=torch.int64))
    given[4] = torch.zeros(1, 1, 0, 2)
    with pytest.raises(ValueError, match="waves has no places; allowed: at least 1 beside positions"):
        ops.random_feature_attention(*given, positions=torch.zeros(2, 9, dtype=torch.int64))
