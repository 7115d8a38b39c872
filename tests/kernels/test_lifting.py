"""Periodised lifting: it can be undone, its equations, and padding."""

import functools

import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.bands.layout import band_rows, bands_of, join_bands


def inputs(batch, positions, features, taps, dtype=torch.float32, seed=0):
    """x, and the taps of both steps; None without taps."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, positions, features, generator=generator, dtype=dtype, requires_grad=True)
    steps = [
        torch.randn(taps, features, generator=generator, dtype=dtype, requires_grad=True) if taps else None
        for _ in range(2)
    ]
    return x, *steps


def padded(positions, levels):
    return -(-positions // 2**levels) * 2**levels


@pytest.mark.parametrize("taps", [0, 1, 5, 16])
@pytest.mark.parametrize(("positions", "levels"), [(1, 1), (3, 2), (63, 3), (64, 3)])
def test_perfect_reconstruction(taps, positions, levels):
    x, predict, update = inputs(3, positions, 3, taps, torch.float64)
    for lengths in (None, torch.tensor([positions, positions // 2, 1])):
        bands = ops.lifting_analysis(x, predict, update, levels, lengths)
        result = ops.lifting_synthesis(bands, predict, update, levels, 3, positions, lengths)
        for sample, length in enumerate([positions] * 3 if lengths is None else lengths.tolist()):
            torch.testing.assert_close(result[sample, :length], x[sample, :length], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_the_fixed_steps_are_those_of_the_paper(name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    x = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    detail = [x[2 * k + 1] - (x[2 * k] + x[(2 * k + 2) % 10]) / 2 for k in range(5)]
    approximation = [x[2 * k] + (detail[k - 1] + detail[k]) / 4 for k in range(5)]
    result = ops.lifting_analysis(x[None, :, None], None, None, 1)[:, 0]
    torch.testing.assert_close(result, torch.stack(approximation + detail), rtol=0, atol=1e-12)
    line = torch.full((1, 8, 1), 3.0)
    assert torch.equal(ops.lifting_analysis(line, None, None, 2)[:, 0], torch.tensor([3.0] * 2 + [0.0] * 6))


def test_the_learned_steps_read_on_in_rows_and_back_in_details(monkeypatch):
    x, predict, update = (tensor.detach() for tensor in inputs(1, 8, 1, 3, torch.float64))
    even, odd = x[0, ::2, 0], x[0, 1::2, 0]
    silu = torch.nn.functional.silu
    detail = [odd[k] - silu(sum(predict[j, 0] * even[(k + j) % 4] for j in range(3))) / 2 for k in range(4)]
    rows = [even[k] + silu(sum(update[j, 0] * detail[(k - j) % 4] for j in range(3))) / 4 for k in range(4)]
    for name in ("reference", "portable", "cpu"):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        result = ops.lifting_analysis(x, predict, update, 1)[:, 0]
        torch.testing.assert_close(result, torch.stack(rows + detail), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "taps", "levels", "lengths"),
    [
        ((1, 1, 1), 0, 1, None),
        ((2, 2, 4), 16, 2, [2, 1]),
        ((3, 13, 5), 0, 3, [13, 0, 6]),
        ((2, 33, 4), 7, 2, [33, 3]),
    ],
    ids=str,
)
def test_portable_equals_the_equations(shape, taps, levels, lengths, relative_rms, monkeypatch):
    x, predict, update = inputs(*shape, taps)
    steps = [] if predict is None else [predict, update]
    lengths = None if lengths is None else torch.tensor(lengths)
    bands = torch.randn(shape[0] * padded(shape[1], levels), shape[2], requires_grad=True)
    results = {}
    for name in ("reference", "portable"):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        forth = ops.lifting_analysis(x, predict, update, levels, lengths)
        back = ops.lifting_synthesis(bands, predict, update, levels, *shape[:2], lengths)
        gradients = torch.autograd.grad((forth, back), (x, bands, *steps), (bands.detach(), x.detach()))
        results[name] = (forth, back, *gradients)
    for value, truth in zip(results["portable"], results["reference"], strict=True):
        assert value.shape == truth.shape and relative_rms(value, truth) < 1e-5


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
@pytest.mark.parametrize("taps", [0, 3])
def test_padding_is_neither_read_nor_written(name, taps, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    x, predict, update = inputs(2, 12, 2, taps)
    lengths = torch.tensor([5, 0])
    poisoned = x.detach().clone()
    poisoned[0, 5:] = float("nan")
    poisoned[1] = float("inf")
    poisoned.requires_grad_()
    bands = ops.lifting_analysis(poisoned, predict, update, 2, lengths)
    alone = ops.lifting_analysis(x[:1, :5], predict, update, 2)
    rows = torch.cat(bands_of(bands, 2, 12, 2), dim=1)
    for start, own, count in [(0, 0, 2), (3, 2, 2), (6, 4, 4)]:
        torch.testing.assert_close(rows[0, start : start + count], alone[own : own + count])
    assert (rows[0, [2, 5, 10, 11]] == 0).all() and (rows[1] == 0).all()
    (gradient,) = torch.autograd.grad(bands.sum(), poisoned)
    assert (gradient[0, 5:] == 0).all() and (gradient[1] == 0).all()

    poisoned = rows.detach().clone()
    poisoned[0, [2, 5, 10, 11]] = float("nan")
    poisoned[1] = float("nan")
    bands = join_bands(poisoned.split(band_rows(12, 2), dim=1))
    rows = ops.lifting_synthesis(bands, predict, update, 2, 2, 12, lengths)
    torch.testing.assert_close(rows[0, :5], x[0, :5])
    assert (rows[0, 5:] == 0).all() and (rows[1] == 0).all()


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_gradients(name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    lengths = torch.tensor([7, 3])
    tensors = inputs(2, 7, 2, 3, torch.float64)
    bands = torch.randn(16, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: ops.lifting_analysis(*a, 2, lengths), tensors)
    assert torch.autograd.gradcheck(lambda *a: ops.lifting_synthesis(*a, 2, 2, 7, lengths), (bands, *tensors[1:]))


@pytest.mark.parametrize(("positions", "lengths"), [(64, None), (7, [7, 3])], ids=str)
def test_second_derivatives_in_plain_pytorch(positions, lengths, monkeypatch):
    """Rows of whole blocks, and rows that repeat."""
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    lengths = None if lengths is None else torch.tensor(lengths)
    tensors = inputs(2, positions, 1, 3, torch.float64)
    bands = torch.randn(2 * padded(positions, 1), 1, dtype=torch.float64, requires_grad=True)
    check = functools.partial(torch.autograd.gradgradcheck, fast_mode=True)
    assert check(lambda *a: ops.lifting_analysis(*a, 1, lengths), tensors)
    assert check(lambda *a: ops.lifting_synthesis(*a, 1, 2, positions, lengths), (bands, *tensors[1:]))


@pytest.mark.full
def test_plain_pytorch_compiles_without_a_break(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    tensors, lengths = inputs(2, 10, 3, 4), torch.tensor([10, 7])

    def there_and_back(x, predict, update, lengths):
        bands = ops.lifting_analysis(x, predict, update, 2, lengths)
        return ops.lifting_synthesis(bands, predict, update, 2, 2, 10, lengths)

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(there_and_back(*tensors, lengths).square().sum(), tensors)
    result = torch.autograd.grad(compiled(*tensors, lengths).square().sum(), tensors)
    torch.testing.assert_close(result, expected)


def test_fixed_steps_keep_nothing_for_the_backward_pass(monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    stored = []
    x = torch.randn(2, 8, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: stored.append(tensor) or tensor, lambda tensor: tensor
    ):
        ops.lifting_synthesis(ops.lifting_analysis(x, None, None, 2), None, None, 2, 2, 8)
    assert stored == []


def test_very_large_and_very_small_sums(monkeypatch):
    """silu where its exponential leaves the range of the numbers."""
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    sums = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 20, -20, 88, -88, 1e4, -1e4, 1e30, -1e30])
    for dtype in (torch.float32, torch.float64):
        x = torch.stack([sums, torch.zeros_like(sums)]).to(dtype)[None].requires_grad_()
        taps = torch.ones(1, len(sums), dtype=dtype)
        detail = ops.lifting_analysis(x, taps, 0 * taps, 1)[1:]
        rows = sums.to(dtype).requires_grad_()
        expected = -torch.nn.functional.silu(rows) / 2
        torch.testing.assert_close(detail[0], expected)
        (gradient,) = torch.autograd.grad(detail.sum(), x)
        torch.testing.assert_close(gradient[0, 0], torch.autograd.grad(expected.sum(), rows)[0])


@pytest.mark.parametrize("taps", [0, 4])
def test_half_precision_is_computed_in_fp32(taps, relative_rms, monkeypatch):
    x, predict, update = inputs(2, 20, 8, taps)
    half = [None if tensor is None else tensor.detach().to(torch.bfloat16) for tensor in (x, predict, update)]
    bands = ops.lifting_analysis(*half, 2)
    rows = ops.lifting_synthesis(bands, *half[1:], 2, 2, 20)
    assert bands.dtype == rows.dtype == torch.bfloat16
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    exact = [None if tensor is None else tensor.double() for tensor in half]
    assert relative_rms(bands, ops.lifting_analysis(*exact, 2)) < 2**-8
    assert relative_rms(rows, ops.lifting_synthesis(bands.double(), *exact[1:], 2, 2, 20)) < 2**-8


def test_shapes_that_do_not_fit():
    x, taps = torch.zeros(2, 6, 3), torch.ones(4, 3)
    with pytest.raises(ValueError, match="only one of predict and update is given"):
        ops.lifting_analysis(x, taps, None, 1)
    with pytest.raises(ValueError, match=r"update has shape \(4, 2\); allowed: \(T, 3\)"):
        ops.lifting_synthesis(x.flatten(0, 1), taps, torch.ones(4, 2), 1, 2, 6)
    with pytest.raises(ValueError, match="levels is 0; allowed: at least 1"):
        ops.lifting_analysis(x, taps, taps, 0)
    with pytest.raises(ValueError, match="bands has 12 rows; allowed: 16"):
        ops.lifting_synthesis(x.flatten(0, 1), None, None, 2, 2, 6)
