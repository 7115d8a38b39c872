"""Every kind of attention against its equations, written out for one sample and each head in float64."""

import math

import pytest
import torch

from longmix.modeling.attention import ATTENTIONS
from longmix.modeling.context import BatchContext

LENGTHS = [([1], 1), ([2, 1], 2), ([3, 0, 1], 3), ([33, 64, 0, 31], 64), ([65, 1], 65)]


def softmax_weights(module, query, key):
    return torch.softmax(query @ key.T / math.sqrt(query.shape[1]), 1)


def linear_weights(module, query, key):
    features = [torch.where(x > 0, x + 1, x.exp()) for x in (query, key)]
    weights = features[0] @ features[1].T
    return weights / weights.sum(1, keepdim=True)


def performer_weights(module, query, key):
    directions = module.directions.double()
    scaled = [x / query.shape[1] ** 0.25 for x in (query, key)]
    features = [torch.exp(x @ directions.T - x.square().sum(1, keepdim=True) / 2) for x in scaled]
    weights = features[0] @ features[1].T
    return weights / weights.sum(1, keepdim=True)


def linformer_weights(module, query, key):
    projection = module.sequence_projection.double()[: len(key)]
    return torch.softmax(query @ (projection.T @ key).T / math.sqrt(query.shape[1]), 1) @ projection.T


def windowed_weights(module, query, key):
    scores = query @ key.T / math.sqrt(query.shape[1])
    position = torch.arange(len(query))
    far = (position[:, None] - position).abs() > module.config.attention_window // 2
    return torch.softmax(scores.masked_fill(far, -math.inf), 1)


def relu_weights(module, query, key):
    features = [torch.relu(x / query.shape[1] ** 0.25) + 1e-3 for x in (query, key)]
    weights = features[0] @ features[1].T
    return weights / weights.sum(1, keepdim=True)


WEIGHTS = {
    "softmax": softmax_weights,
    "linear": linear_weights,
    "performer": performer_weights,
    "relu": relu_weights,
    "linformer": linformer_weights,
    "windowed": windowed_weights,
}


def normalised(x, norm):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def oracle(kind, module, x):
    """One sample (n, D) -> (n, D)."""
    size = x.shape[1] // module.heads
    weight, bias = module.projection.weight.double(), module.projection.bias.double()
    query, key, value = (x @ weight.T + bias).chunk(3, 1)
    mixed = []
    for head in range(module.heads):
        parts = [x[:, head * size : (head + 1) * size] for x in (query, key, value)]
        if kind == "relu":
            parts = [normalised(x, norm) for x, norm in zip(parts, module.norms, strict=True)]
        mixed.append(WEIGHTS[kind](module, *parts[:2]) @ parts[2])
    return torch.cat(mixed, 1) @ module.output.weight.double().T + module.output.bias.double()


@pytest.fixture(params=[*ATTENTIONS, "relu"])
def kind(request):
    return request.param


@pytest.mark.parametrize("fields", [{}, {"hidden_size": 12, "num_attention_heads": 1, "linformer_rank": 9}])
@pytest.mark.parametrize(("lengths", "positions"), LENGTHS)
def test_equals_the_equations_whatever_the_padding_holds(kind, fields, lengths, positions, make):
    module = make(kind, **fields).double()
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), positions, module.config.hidden_size, dtype=torch.float64)
    poisoned = torch.where(mask[:, :, None], x, float("nan")).requires_grad_()
    result = module(poisoned, BatchContext(mask))
    assert (result[~mask] == 0).all()
    for row, n in enumerate(lengths):
        if n:
            expected = oracle(kind, module, x[row, :n])
            torch.testing.assert_close(result[row, :n], expected, rtol=0, atol=1e-10)
            torch.testing.assert_close(module(x[row : row + 1, :n], BatchContext())[0], expected, rtol=0, atol=1e-10)
    gradients = torch.autograd.grad(result.square().sum(), [poisoned, *module.parameters()])
    assert (gradients[0][~mask] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("window", [1, 2, 3, 62, 63, 64, 65, 66, 127, 128, 129, 1000])
@pytest.mark.parametrize("positions", [1, 31, 33, 34, 65, 130, 260])
def test_any_window_in_any_length(window, positions, make):
    module = make("windowed", attention_window=window).double()
    lengths = torch.tensor([positions, positions // 2])
    mask = torch.arange(positions) < lengths[:, None]
    x = torch.randn(2, positions, 16, dtype=torch.float64)
    result = module(x, BatchContext(mask))
    for row, n in enumerate(lengths.tolist()):
        if n:
            torch.testing.assert_close(result[row, :n], oracle("windowed", module, x[row, :n]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [kind for kind in WEIGHTS if kind != "softmax"])
def test_work_and_memory_are_linear_in_the_length(kind, make, count_elements):
    module = make(kind, positions=2048, attention_window=9)
    counts = []
    for positions in (1024, 2048):
        mask = torch.arange(positions)[None] < positions - 5
        with count_elements() as elements:
            module(torch.randn(1, positions, 16), BatchContext(mask)).sum().backward()
        counts.append(elements.total)
        assert elements.largest <= positions * 120  # 2 heads of 60 keys at most
    assert counts[1] < 2.05 * counts[0]


def test_gradients(kind, make):
    module = make(kind, hidden_size=4, num_attention_heads=2, positions=6).double()
    mask = torch.arange(6) < torch.tensor([6, 4, 0])[:, None]
    x = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *inputs: module(inputs[0], BatchContext(mask)), (x, *module.parameters()))


@pytest.mark.parametrize("shape", [(0, 7, 16), (2, 0, 16)])
def test_empty_batches(kind, shape, make):
    module = make(kind)
    for mask in (None, torch.ones(shape[:2], dtype=torch.bool)):
        assert module(torch.zeros(shape), BatchContext(mask)).shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modules(kind, dtype, make):
    module = make(kind, positions=100)
    x = torch.randn(2, 90, 16)
    mask = torch.arange(90) < torch.tensor([90, 40])[:, None]
    expected = module(x, BatchContext(mask))
    result = module.to(dtype)(x.to(dtype), BatchContext(mask))
    assert result.dtype == dtype
    assert (result - expected).square().mean().sqrt() < 2e-2 * expected.square().mean().sqrt()


def test_compiles_without_breaks(kind, make):
    module = make(kind)
    mask = torch.arange(40) < torch.tensor([40, 9])[:, None]
    x = torch.randn(2, 40, 16)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, BatchContext(mask)), module(x, BatchContext(mask)))


def test_attention_weights_are_dropped_while_training(make):
    for kind in ("softmax", "linformer", "windowed"):
        module = make(kind, attention_probs_dropout_prob=0.5)
        x = torch.randn(1, 20, 16)
        assert torch.equal(module(x, BatchContext()), module(x, BatchContext()))
        module.train()
        assert not torch.equal(module(x, BatchContext()), module(x, BatchContext()))


def test_linformer_grows_without_changing_short_sequences(make):
    module = make("linformer", positions=8)
    x = torch.randn(2, 8, 16)
    mask = torch.arange(8) < torch.tensor([8, 5])[:, None]
    before = module(x, BatchContext(mask))
    module.extend(20)
    assert torch.equal(module(x, BatchContext(mask)), before)
    longer = torch.randn(1, 20, 16, dtype=torch.float64)
    module.double()
    torch.testing.assert_close(
        module(longer, BatchContext())[0], oracle("linformer", module, longer[0]), rtol=0, atol=1e-10
    )
    assert module.sequence_projection.requires_grad


def test_unknown_kind(make):
    with pytest.raises(ValueError, match="attention is 'quadratic'; allowed: softmax, linear, performer"):
        make("quadratic")
