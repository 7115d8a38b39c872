"""Paramixer's product of factors: explicit matrices, fused gathers, documents, padding and gradients."""

import weakref

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.link_mix import portable, proof, slabs


def run(name, monkeypatch, *arguments, **options):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    return ops.link_mix(*arguments, **options)


def inputs(batch, positions, features, factors, links, dtype=torch.float32, seed=0):
    """value, weights and offsets; the offsets reach beyond both ends and hold duplicates."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(batch, positions, features, generator=generator, dtype=dtype)
    weights = torch.randn(batch, positions, factors, links, generator=generator, dtype=dtype) / links
    offsets = torch.randint(-2 * positions, 2 * positions + 1, (factors, links), generator=generator)
    return value.requires_grad_(), weights.requires_grad_(), offsets


SHAPES = [
    # batch, positions, features, factors, links, lengths
    (2, 1, 1, 1, 1, None),
    (2, 1, 4, 2, 3, [1, 0]),
    (1, 2, 7, 3, 2, None),
    (3, 3, 6, 1, 4, [3, 2, 1]),
    (2, 17, 8, 4, 5, [17, 5]),
    (1, 31, 100, 5, 6, None),
    (3, 13, 12, 9, 3, [13, 0, 7]),
    (2, 130, 3, 2, 9, [127, 130]),
]


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_equals_the_explicit_matrices(name, shape, with_documents, wrap, relative_rms, monkeypatch):
    *sizes, lengths = shape
    value, weights, offsets = inputs(*sizes)
    batch, positions = sizes[:2]
    lengths = None if lengths is None else torch.tensor(lengths)
    documents = None
    if with_documents:
        # Runs of three or four rows, numbered in no order and with a number that comes back.
        documents = torch.tensor([7, -2, 5, 7, 2**62]).repeat(positions)[torch.arange(positions) // 3].repeat(batch, 1)
        documents[:, positions // 2 :] += 1
    cotangent = torch.randn(value.shape)
    results = []
    for implementation in (name, "reference"):
        result = run(implementation, monkeypatch, value, weights, offsets, lengths, wrap, documents)
        assert result.dtype == value.dtype
        results.append((result, *torch.autograd.grad(result, (value, weights), cotangent)))
    for mine, truth, tolerance in zip(*results, (1e-5, 1e-4, 1e-4), strict=True):
        if truth.any():
            assert relative_rms(mine, truth) < tolerance
        else:
            assert not mine.any()


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_one_factor_is_the_equation(name, monkeypatch):
    """Links to the same position are summed, the first factor is applied first, and dropped links count for nothing."""
    value, weights, _ = inputs(1, 5, 2, 2, 3, torch.float64)
    offsets = torch.tensor([[0, 5, 1], [-2, 3, 6]])
    for wrap in (True, False):
        expected = value[0]
        for factor in range(2):
            previous, expected = expected, expected.clone()
            for row in range(5):
                for link in range(3):
                    column = row + int(offsets[factor, link])
                    if wrap or 0 <= column < 5:
                        expected[row] = expected[row] + weights[0, row, factor, link] * previous[column % 5]
        result = run(name, monkeypatch, value, weights, offsets, wrap=wrap)
        torch.testing.assert_close(result[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
@pytest.mark.parametrize("wrap", [True, False])
def test_gradients(name, wrap, monkeypatch):
    value, weights, offsets = inputs(2, 6, 2, 5, 3, torch.float64)
    lengths = torch.tensor([6, 4])
    documents = torch.tensor([[4, 4, 4, 4, 1, 1], [0, 9, 9, 9, 9, 9]])
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    assert torch.autograd.gradcheck(
        lambda value, weights: ops.link_mix(value, weights, offsets, lengths, wrap, documents), (value, weights)
    )


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
@pytest.mark.parametrize("wrap", [True, False])
def test_padding_is_neither_read_nor_written(name, wrap, monkeypatch):
    value, weights, offsets = inputs(2, 9, 4, 3, 4)
    lengths = torch.tensor([4, 0])
    poisoned = [tensor.detach().clone() for tensor in (value, weights)]
    for tensor in poisoned:
        tensor[0, 4:] = float("nan")
        tensor[1] = float("inf")
        tensor.requires_grad_()
    # The last document goes on in the padding by number, but not in fact.
    for documents in (None, torch.tensor([1, 1, 2, 2, 2, 2, 2, 2, 2]).expand(2, 9)):
        result = run(name, monkeypatch, *poisoned, offsets, lengths, wrap, documents)
        own = None if documents is None else documents[:1, :4]
        alone = run(name, monkeypatch, value[:1, :4], weights[:1, :4], offsets, None, wrap, own)
        torch.testing.assert_close(result[:1, :4], alone, rtol=1e-5, atol=1e-5)
        assert (result[0, 4:] == 0).all() and (result[1] == 0).all()
        cotangent = torch.ones_like(result)
        cotangent[0, 4:] = float("nan")
        gradients = torch.autograd.grad(result, poisoned, cotangent)
        of_alone = torch.autograd.grad(alone.sum(), (value, weights))
        for gradient, expected in zip(gradients, of_alone, strict=True):
            assert (gradient[0, 4:] == 0).all() and (gradient[1] == 0).all()
            torch.testing.assert_close(gradient[0, :4], expected[0, :4], rtol=1e-5, atol=1e-5)


def test_documents_are_mixed_as_if_alone(monkeypatch):
    value, weights, offsets = inputs(1, 12, 4, 3, 4, torch.float64)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [0] * 3])
    for wrap in (True, False):
        packed = run("portable", monkeypatch, value, weights, offsets, wrap=wrap, document_ids=documents)
        for rows in (slice(0, 5), slice(5, 9), slice(9, 12)):
            alone = run("portable", monkeypatch, value[:, rows], weights[:, rows], offsets, wrap=wrap)
            torch.testing.assert_close(packed[:, rows], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32(dtype, relative_rms, monkeypatch):
    value, weights, offsets = inputs(2, 20, 8, 5, 4)
    value, weights = value.detach().to(dtype), weights.detach().to(dtype)
    truth = run("reference", monkeypatch, value.double(), weights.double(), offsets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = run("portable", monkeypatch, value, weights, offsets)
    assert result.dtype == dtype
    assert relative_rms(result, truth) < 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [None, [32, 20]])
@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_nothing_but_the_arguments_is_kept(name, lengths, dtype, monkeypatch):
    value, weights, offsets = (x.detach() for x in inputs(2, 32, 64, 12, 3))
    value, weights = (x.to(dtype).requires_grad_() for x in (value, weights))
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: stored.append(tensor) or tensor, lambda tensor: tensor
    ):
        run(name, monkeypatch, value, weights, offsets, None if lengths is None else torch.tensor(lengths))
    floating = {tensor.data_ptr() for tensor in stored if tensor.is_floating_point()}
    assert floating == {value.data_ptr(), weights.data_ptr()}
    assert sum(tensor.numel() for tensor in stored if not tensor.is_floating_point()) < value.numel() / 8


@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_compiles_without_breaks(name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    value, weights, offsets = inputs(2, 7, 4, 3, 4)
    lengths, documents = torch.tensor([7, 4]), torch.tensor([[3, 3, 3, 1, 1, 1, 1]]).expand(2, 7).contiguous()

    def function(value, weights):
        return ops.link_mix(value, weights, offsets, lengths, True, documents)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    cotangent = torch.randn(value.shape)
    results = [
        (result, *torch.autograd.grad(result, (value, weights), cotangent))
        for result in (function(value, weights), compiled(value, weights))
    ]
    for eager, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize(("factors", "links"), [(0, 3), (2, 0)])
def test_nothing_to_add(name, factors, links, monkeypatch):
    value, weights, _ = inputs(2, 5, 3, factors, links)
    result = run(name, monkeypatch, value, weights, torch.zeros(factors, links, dtype=torch.int64))
    cotangent = torch.randn(value.shape)
    gradients = torch.autograd.grad(result, (value, weights), cotangent, allow_unused=True, materialize_grads=True)
    assert torch.equal(result, value) and torch.equal(gradients[0], cotangent)
    assert gradients[1].shape == weights.shape


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_empty_tensors(shape, monkeypatch):
    batch, positions, _ = shape
    value = torch.zeros(shape, requires_grad=True)
    weights = torch.ones(batch, positions, 2, 3)
    lengths = torch.zeros(batch, dtype=torch.int64)
    for name in ("reference", "portable", "cpu"):
        result = run(name, monkeypatch, value, weights, torch.ones(2, 3, dtype=torch.int64), lengths)
        assert result.shape == shape
        result.sum().backward()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": torch.zeros(5, 4)}, r"value has shape \(5, 4\)"),
        ({"weights": torch.zeros(2, 4, 3, 2)}, r"weights has shape \(2, 4, 3, 2\); needed: \(2, 5\)"),
        ({"offsets": torch.zeros(2, 3, dtype=torch.int64)}, r"offsets has shape \(2, 3\); allowed: \(3, 2\)"),
        ({"lengths": torch.zeros(3, dtype=torch.int64)}, r"lengths has shape \(3,\); allowed: \(2,\)"),
        ({"document_ids": torch.zeros(2, 4, dtype=torch.int64)}, r"document_ids has shape \(2, 4\); allowed: \(2, 5\)"),
    ],
)
def test_shapes_that_do_not_fit(changed, message):
    arguments = {
        "value": torch.zeros(2, 5, 4),
        "weights": torch.zeros(2, 5, 3, 2),
        "offsets": torch.zeros(3, 2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        ops.link_mix(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("with_documents", "lengths", "wrap"),
    [
        (False, None, True),
        pytest.param(True, [13, 9], False, marks=pytest.mark.full),
        pytest.param(False, [13, 9], False, marks=pytest.mark.full),
        pytest.param(True, None, True, marks=pytest.mark.full),
    ],
)
def test_triton_with_large_slabs_equals_the_reference(with_documents, lengths, wrap, triton, relative_rms, monkeypatch):
    """Eight channels, each walk by itself, and the gradients of two factors at a time."""
    monkeypatch.setattr(slabs, "SLAB", 64)
    value, weights, offsets = inputs(2, 13, 11, 3, 9)
    offsets = offsets if wrap else offsets % 7 - 3
    lengths = None if lengths is None else torch.tensor(lengths)
    documents = (torch.arange(13) // 4).repeat(2, 1) if with_documents else None
    cotangent, results = torch.randn(value.shape), []
    for name in ("triton", "reference"):
        result = run(name, monkeypatch, value, weights, offsets, lengths, wrap, documents)
        results.append((result, *torch.autograd.grad(result, (value, weights), cotangent)))
    for mine, truth, tolerance in zip(*results, (1e-5, 1e-4, 1e-4), strict=True):
        assert relative_rms(mine, truth) < tolerance


def test_parts_of_a_gradient_take_no_more_memory_than_as_few_launches_need(triton, monkeypatch):
    from longmix.kernels.link_mix import gpu_kernels

    walks, kept = [], []

    def launch(kernel, states, documents, wrap, *arguments, sizes):
        if kernel is gpu_kernels.unmix_all:
            *_, parts, low, high = arguments
            assert parts.shape[1] == high - low
            walks.append((low, high))
            kept.append(weakref.ref(parts))

    def new_empty(self, *size, **options):
        assert all(earlier() is None for earlier in kept)
        return whole(self, *size, **options)

    whole = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    monkeypatch.setattr(gpu_kernels, "_launch", launch)
    value, weights, offsets = (tensor.to("meta") for tensor in inputs(1, 512, 16, 9, 19))
    value, weights = value.detach().bfloat16(), weights.detach().bfloat16()
    gpu_kernels.link_mix_backward(value, value, weights, offsets, None, None, None, True)
    # Sixteen channels of nineteen links: seven factors fit at a time, and two launches do with five.
    assert walks == [(4, 9), (0, 4)]


@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_proof_has_the_slabs_of_its_form(dtype, with_documents):
    offsets, seen = torch.zeros(1, 2, dtype=torch.int64), set()
    for positions in (64, 512, 700, 1024, 2048, 4096, 8192, 60000):
        ids = torch.empty(1, positions, device="meta") if with_documents else None
        value, weights = (torch.empty(1, positions, *size, dtype=dtype, device="meta") for size in ((64,), (1, 2)))
        form = proof.form(value, weights, offsets, None, True, ids)
        seen.add(form.slab)
        for more in (96, 67):
            arguments = proof.inputs("link_mix", form, more, True, torch.Generator().manual_seed(0))
            assert arguments[0].shape[1] % 16 == more % 16
            assert proof.form(*(x.to(dtype) if i < 2 else x for i, x in enumerate(arguments))) == form
    # Documents are shorter than their sample: slabs grow no narrower for it.
    usual = min(slabs.MOST, slabs.SLAB // (slabs.USUAL_DOCUMENT * dtype.itemsize))
    assert (min(seen), max(seen)) == (usual if with_documents else slabs.LEAST, slabs.MOST)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("wrap", "lengths"), [(True, None), (False, [17, 5])])
@pytest.mark.parametrize("with_documents", [False, True])
def test_portable_for_gpus_equals_the_reference(with_documents, wrap, lengths, dtype, relative_rms, monkeypatch):
    monkeypatch.setattr(portable, "for_gpu", lambda tensor: True)
    value, weights, offsets = inputs(2, 17, 8, 4, 5)
    arguments = [tensor.detach().to(dtype).requires_grad_() for tensor in (value, weights)]
    exact = [tensor.detach().double().requires_grad_() for tensor in arguments]
    lengths = None if lengths is None else torch.tensor(lengths)
    documents = (torch.arange(17) // 4).repeat(2, 1) if with_documents else None
    cotangent, results = torch.randn(value.shape).to(dtype), []
    for name, tensors in (("portable", arguments), ("reference", exact)):
        result = run(name, monkeypatch, *tensors, offsets, lengths, wrap, documents)
        results.append((result, *torch.autograd.grad(result, tensors, cotangent.to(result))))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for mine, truth in zip(*results, strict=True):
        assert mine.dtype == dtype and relative_rms(mine, truth) < tolerance


def test_portable_for_gpus_has_second_derivatives(monkeypatch):
    monkeypatch.setattr(portable, "for_gpu", lambda tensor: True)
    value, weights, offsets = inputs(1, 4, 2, 2, 2, torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda value, weights: run("portable", monkeypatch, value, weights, offsets), (value, weights)
    )


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.float16)])
def test_triton_takes_weights_of_another_dtype(dtypes, triton, relative_rms, monkeypatch):
    value, weights, offsets = inputs(1, 7, 4, 2, 3)
    arguments = [x.detach().to(dtype).requires_grad_() for x, dtype in zip((value, weights), dtypes, strict=True)]
    exact = [x.detach().double().requires_grad_() for x in arguments]
    results = []
    for name, tensors in (("triton", arguments), ("reference", exact)):
        result = run(name, monkeypatch, *tensors, offsets)
        results.append((result, *torch.autograd.grad(result.sum(), tensors)))
    for mine, truth, dtype in zip(*results, (dtypes[0], *dtypes), strict=True):
        assert mine.dtype == dtype and relative_rms(mine, truth) < 2e-2
