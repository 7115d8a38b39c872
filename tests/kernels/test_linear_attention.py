"""Linear attention, from features and from their logarithms: explicit matrices, blocks, documents and padding."""

import itertools
import math

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import obstacle

# Runs of equal ids, one row long or longer than several blocks, with a number that comes back.
BOUNDS = [0, 1, 2, 5, 40, 41, 64, 65, 128, 260, 261, 300]


@pytest.fixture(params=["feature_attention", "linear_attention"])
def operation(request):
    """Name of one of the two operations."""
    return request.param


@pytest.fixture(params=["reference", "portable", "cpu"])
def name(request, operation, require_or_skip):
    """Name of an implementation that can run here."""
    if request.param == "cpu" and (reason := obstacle(operation, "cpu", "cpu")) is not None:
        require_or_skip("compiler", reason)
    return request.param


def run(name, monkeypatch, operation, *arguments, **options):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    return getattr(ops, operation)(*arguments, **options)


def inputs(operation, shape, dtype=torch.float32, seed=0):
    """Queries, keys (B, H, N, m) and values (B, H, N, d)."""
    batch, heads, positions, features, width = shape
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, batch, heads, positions, features, generator=generator, dtype=dtype)
    value = torch.randn(batch, heads, positions, width, generator=generator, dtype=dtype)
    if operation == "linear_attention":
        query, key = (x.clamp(min=-1) + 1 for x in (query, key))
    return tuple(x.detach().requires_grad_() for x in (query, key, value))


def documents_of(batch, positions):
    bounds = [bound for bound in BOUNDS if bound < positions] + [positions]
    ids = torch.empty(batch, positions, dtype=torch.int64)
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        ids[:, start:end] = (7, -2, 2**62)[number % 3]
    ids[1:] = ids[1:].flip(1)
    return ids


SHAPES = [
    # batch, heads, positions, features, width, lengths
    (2, 1, 1, 1, 1, None),
    (2, 2, 1, 3, 4, [1, 0]),
    (1, 1, 2, 4, 7, None),
    (3, 2, 3, 1, 5, [3, 2, 1]),
    (2, 1, 31, 8, 1, [31, 17]),
    (1, 2, 64, 5, 6, None),
    (3, 1, 65, 7, 3, [65, 0, 64]),
    (2, 2, 131, 6, 4, [131, 128]),
    (2, 1, 300, 4, 3, [300, 257]),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_portable_equals_the_explicit_matrices(operation, shape, with_documents, causal, relative_rms, monkeypatch):
    *shape, lengths = shape
    tensors = inputs(operation, shape)
    lengths = None if lengths is None else torch.tensor(lengths)
    documents = documents_of(shape[0], shape[2]) if with_documents else None
    cotangent = torch.randn(tensors[2].shape)
    results = {}
    for name in ("reference", "portable"):
        result = run(name, monkeypatch, operation, *tensors, lengths, causal, documents)
        assert result.dtype == torch.float32
        results[name] = (result, *torch.autograd.grad(result, tensors, cotangent))
    for mine, truth, tolerance in zip(results["portable"], results["reference"], (1e-5,) + (1e-4,) * 3, strict=True):
        if truth.abs().max() > 1e-6:
            assert relative_rms(mine, truth) < tolerance
        else:  # one feature cancels, and so does a single key's weight
            assert mine.abs().max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_reference_equals_the_sums(operation, causal, monkeypatch):
    query, key, value = (x.detach() for x in inputs(operation, (1, 1, 7, 3, 2), torch.float64))
    ids = [4, 4, 4, 9, 9, 4, 4]
    expected = torch.zeros(7, 2, dtype=torch.float64)
    for i in range(7):
        total = 0.0
        for j in range(7):
            same = len(set(ids[min(i, j) : max(i, j) + 1])) == 1
            if not same or (causal and j > i):
                continue
            for m in range(3):
                a, b = query[0, 0, i, m].item(), key[0, 0, j, m].item()
                weight = math.exp(a + b) if operation == "feature_attention" else a * b
                expected[i] += weight * value[0, 0, j]
                total += weight
        expected[i] = expected[i] / total if total else 0.0
    for name in ("reference", "portable"):
        result = run(name, monkeypatch, operation, query, key, value, None, causal, torch.tensor([ids]))
        torch.testing.assert_close(result[0, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_gradients(operation, name, causal, with_documents, monkeypatch):
    tensors = inputs(operation, (2, 1, 5, 2, 2), torch.float64)
    documents = torch.tensor([[3, 3, 1, 1, 1], [2, 2, 2, 2, 6]]) if with_documents else None
    lengths = torch.tensor([5, 3])
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    function = getattr(ops, operation)
    if operation == "linear_attention":  # away from the edge at zero, where a step would leave what is allowed
        tensors = tuple((x.detach() + 0.1).requires_grad_() for x in tensors)
    assert torch.autograd.gradcheck(lambda *x: function(*x, lengths, causal, documents), tensors)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_padding_is_neither_read_nor_written(operation, name, causal, with_documents, monkeypatch):
    tensors = inputs(operation, (3, 1, 70, 4, 3))
    lengths = torch.tensor([66, 1, 0])
    valid = (torch.arange(70) < lengths[:, None])[:, None, :, None]
    documents = documents_of(3, 70) if with_documents else None
    for poison in (float("nan"), float("inf")):
        poisoned = [torch.where(valid, x, poison).detach().requires_grad_() for x in tensors]
        result = run(name, monkeypatch, operation, *poisoned, lengths, causal, documents)
        assert (result.masked_fill(valid, 0.0) == 0).all()
        for row, n in enumerate(lengths.tolist()[:2]):
            own = [x[row : row + 1, :, :n] for x in tensors]
            ids = None if documents is None else documents[row : row + 1, :n]
            alone = run(name, monkeypatch, operation, *own, None, causal, ids)
            torch.testing.assert_close(result[row : row + 1, :, :n], alone, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(result.square().sum(), poisoned)
        assert all((gradient.masked_fill(valid, 0.0) == 0).all() for gradient in gradients)
        assert all(gradient.isfinite().all() for gradient in gradients)


# The plain one, and such as an integer added to their bits turns into numbers.
NANS = (0x7FC00000, 0x7FFFFFFF, 0x7FC00001, 0xFFC12345 - 2**32)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_nan_reaches_every_row_that_sees_it(operation, name, with_documents, causal, which, monkeypatch):
    positions, row = 70, 35
    document = torch.arange(positions) // 30
    sees = torch.arange(positions) == row
    if which > 0:
        sees = torch.arange(positions) >= row if causal else torch.ones(positions, dtype=torch.bool)
        sees = sees & (document == document[row]) if with_documents else sees
    for bits in NANS:
        tensors = [x.detach() for x in inputs(operation, (1, 1, positions, 3, 2))]
        tensors[which].view(torch.int32)[0, 0, row, 1] = bits
        result = run(name, monkeypatch, operation, *tensors, None, causal, document[None] if with_documents else None)
        assert result[0, 0, sees].isnan()[:, 1 if which == 2 else slice(None)].all()


@pytest.mark.parametrize("causal", [False, True])
def test_documents_see_only_themselves(operation, name, causal, monkeypatch):
    tensors = [x.detach() for x in inputs(operation, (1, 2, 330, 4, 3), torch.float64)]
    documents = documents_of(1, 330)
    packed = run(name, monkeypatch, operation, *tensors, None, causal, documents)
    for start, end in itertools.pairwise([*BOUNDS, 330]):
        alone = run(name, monkeypatch, operation, *(x[:, :, start:end] for x in tensors), None, causal)
        torch.testing.assert_close(packed[:, :, start:end], alone, rtol=0, atol=1e-12)


def test_the_future_does_not_change_the_past(operation, monkeypatch):
    tensors = [x.detach() for x in inputs(operation, (1, 1, 200, 4, 3), torch.float64)]
    before = run("portable", monkeypatch, operation, *tensors, None, True)
    for end in (1, 31, 32, 65, 130):
        alone = run("portable", monkeypatch, operation, *(x[:, :, :end] for x in tensors), None, True)
        torch.testing.assert_close(before[:, :, :end], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_is_computed_in_fp32(operation, dtype, causal, relative_rms, monkeypatch):
    tensors = [x.detach().to(dtype) for x in inputs(operation, (2, 2, 90, 8, 4))]
    truth = run("reference", monkeypatch, operation, *(x.double() for x in tensors), None, causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = run("portable", monkeypatch, operation, *tensors, None, causal)
    assert result.dtype == dtype
    assert relative_rms(result, truth) < 2**-8
    wide = run("portable", monkeypatch, operation, *(x.float() for x in tensors[:2]), tensors[2], None, causal)
    assert wide.dtype == dtype
    torch.testing.assert_close(wide, result, rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_work_and_memory_are_linear_in_the_length(operation, causal, with_documents, monkeypatch, count_elements):
    counts = []
    for positions in (1024, 2048):
        tensors = inputs(operation, (1, 1, positions, 64, 64))
        documents = documents_of(1, positions) if with_documents else None
        with count_elements() as elements:
            run("portable", monkeypatch, operation, *tensors, None, causal, documents).sum().backward()
        counts.append(elements.total)
        assert elements.largest <= 3 * positions * 65  # queries, keys, values and states of m by d + 1 for a block
    assert counts[1] < 2.05 * counts[0]


@pytest.mark.full
def test_compiles_without_breaks(operation, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    tensors = [x.detach() for x in inputs(operation, (2, 1, 65, 4, 3))]
    lengths, documents = torch.tensor([65, 9]), documents_of(2, 65)
    function = getattr(ops, operation)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    result = compiled(*tensors, lengths, True, documents)
    torch.testing.assert_close(result, function(*tensors, lengths, True, documents))


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_keep_nothing_but_their_arguments(operation, causal, monkeypatch):
    tensors = inputs(operation, (1, 2, 100, 8, 4))
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: stored.append(tensor) or tensor, lambda tensor: tensor
    ):
        run("cpu", monkeypatch, operation, *tensors, None, causal)
    assert {tensor.data_ptr() for tensor in stored} == {tensor.data_ptr() for tensor in tensors}


@pytest.mark.parametrize("shape", [(0, 2, 5, 3, 4), (2, 0, 5, 3, 4), (2, 1, 0, 3, 4), (2, 1, 5, 3, 0)])
def test_empty_tensors(operation, name, shape, monkeypatch):
    tensors = inputs(operation, shape)
    result = run(name, monkeypatch, operation, *tensors, torch.zeros(shape[0], dtype=torch.int64), True)
    assert result.shape == tensors[2].shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": (2, 1, 5, 4)}, "and value have shapes"),
        ({"value": (2, 1, 6, 4)}, "and value have shapes"),
        ({"value": (2, 5, 4)}, "and value have shapes"),
        ({"query": (2, 1, 5, 0), "key": (2, 1, 5, 0)}, "has no features"),
        ({"lengths": (1,)}, r"lengths has shape \(1,\); allowed: \(2,\)"),
        ({"documents": (2, 4)}, r"document_ids has shape \(2, 4\); allowed: \(2, 5\)"),
    ],
)
def test_shapes_that_do_not_fit(operation, change, message):
    shapes = {"query": (2, 1, 5, 3), "key": (2, 1, 5, 3), "value": (2, 1, 5, 4), "lengths": (2,), "documents": (2, 5)}
    query, key, value, lengths, documents = (torch.zeros(shape).long() for shape in {**shapes, **change}.values())
    with pytest.raises(ValueError, match=message):
        getattr(ops, operation)(query.float(), key.float(), value.float(), lengths, False, documents)


def test_features_that_are_zero_for_all_keys(monkeypatch):
    query, key, value = (x.detach() for x in inputs("linear_attention", (2, 1, 70, 3, 2)))
    key[0], query[1, :, 40:] = 0.0, 0.0
    for name, causal in itertools.product(("reference", "portable"), (False, True)):
        tensors = [x.clone().requires_grad_() for x in (query, key, value)]
        result = run(name, monkeypatch, "linear_attention", *tensors, None, causal)
        assert (result[0] == 0).all() and (result[1, :, 40:] == 0).all() and result[1, :, 1:40].all()
        gradients = torch.autograd.grad(result.square().sum(), tensors)
        assert all(gradient.isfinite().all() for gradient in gradients)
