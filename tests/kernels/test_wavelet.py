"""Periodised wavelet transforms: perfect reconstruction, PyWavelets, explicit sums, and the choice between them."""

import pytest
import pywt
import torch

from longmix.kernels import ops
from longmix.kernels.bands.layout import band_rows, bands_of, join_bands
from longmix.kernels.wavelet import portable

FAMILIES = ("haar", "db2", "db7", "sym5", "coif3", "db20")


def taps_of(name):
    return torch.tensor(pywt.Wavelet(name).dec_lo[::-1], dtype=torch.float64)


def inputs(batch, positions, features, taps, dtype=torch.float32, per_channel=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, positions, features, generator=generator, dtype=dtype, requires_grad=True)
    shape = (taps, features) if per_channel else (taps,)
    return x, torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)


def padded(positions, levels):
    return -(-positions // 2**levels) * 2**levels


def of_samples(bands, batch, positions, levels):
    """(B N', D) -> each sample's bands one behind the other, (B, N', D)."""
    return torch.cat(bands_of(bands, batch, positions, levels), dim=1)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("positions", "levels"), [(1, 1), (2, 1), (3, 2), (63, 2), (64, 3), (127, 1), (40, 4)])
def test_perfect_reconstruction(name, positions, levels):
    x = inputs(3, positions, 3, 2, torch.float64)[0].detach()
    taps = taps_of(name)
    for lengths in (None, torch.tensor([positions, positions // 2, 1])):
        bands = ops.wavelet_analysis(x, taps, levels, lengths)
        assert bands.shape == (3 * padded(positions, levels), 3)
        result = ops.wavelet_synthesis(bands, taps, levels, 3, positions, lengths)
        for sample, length in enumerate([positions] * 3 if lengths is None else lengths.tolist()):
            torch.testing.assert_close(result[sample, :length], x[sample, :length], rtol=0, atol=1e-10)
            energy = of_samples(bands, 3, positions, levels)[sample].square().sum()
            torch.testing.assert_close(energy, x[sample, :length].square().sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["haar", "db2", "db8", "sym5", "coif3"])
@pytest.mark.parametrize("positions", [18, 30, 64])
def test_one_level_equals_pywavelets(name, positions):
    """PyWavelets' sums start 1 - T / 2 rows later."""
    taps = taps_of(name)
    x = torch.randn(positions, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    approximation, detail = pywt.dwt(x.numpy(), name, "periodization")
    ours = ops.wavelet_analysis(x.roll(len(taps) // 2 - 1)[None, :, None], taps, 1)[:, 0]
    torch.testing.assert_close(ours[: positions // 2], torch.from_numpy(approximation), rtol=0, atol=1e-10)
    torch.testing.assert_close(ours[positions // 2 :], torch.from_numpy(detail), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["db2", "sym4", "db6"])
def test_several_levels_equal_pywavelets(name):
    """The later start of level j is that of all levels below it, in rows of the band."""
    taps, levels = taps_of(name), 3
    late = len(taps) // 2 - 1
    x = torch.randn(96, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = pywt.wavedec(x.numpy(), name, "periodization", level=levels)
    ours = ops.wavelet_analysis(x.roll(late * (2**levels - 1))[None, :, None], taps, levels)[:, 0]
    start = 0
    for band, depth in zip(expected, [3, 3, 2, 1], strict=True):
        rows = ours[start : start + len(band)].roll(-late * (2 ** (levels - depth) - 1))
        torch.testing.assert_close(rows, torch.from_numpy(band), rtol=0, atol=1e-10)
        start += len(band)
    assert start == 96


SHAPES = [
    # batch, positions, features, taps, per channel, levels, lengths
    (1, 1, 1, 2, True, 1, None),
    (2, 2, 4, 16, True, 2, [2, 1]),
    (3, 3, 5, 4, False, 1, [3, 0, 2]),
    (2, 13, 7, 6, True, 3, [13, 5]),
    (2, 33, 4, 40, True, 2, [33, 2]),
    (2, 64, 3, 8, False, 4, None),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_portable_equals_the_sums(shape, relative_rms, monkeypatch):
    batch, positions, features, taps, per_channel, levels, lengths = shape
    x, filters = inputs(batch, positions, features, taps, per_channel=per_channel)
    lengths = None if lengths is None else torch.tensor(lengths)
    bands = torch.randn(batch * padded(positions, levels), features, requires_grad=True)
    results = {}
    for name in ("reference", "portable"):
        monkeypatch.setenv("LONGMIX_KERNELS", name)
        forth = ops.wavelet_analysis(x, filters, levels, lengths)
        back = ops.wavelet_synthesis(bands, filters, levels, batch, positions, lengths)
        gradients = torch.autograd.grad((forth, back), (x, filters, bands), (bands.detach(), x.detach()))
        results[name] = (forth, back, *gradients)
    for value, truth in zip(results["portable"], results["reference"], strict=True):
        assert value.shape == truth.shape and relative_rms(value, truth) < 1e-5


@pytest.mark.parametrize("lengths", [None, [11, 4, 0]], ids=str)
def test_synthesis_is_the_adjoint(lengths):
    x, filters = (tensor.detach() for tensor in inputs(3, 11, 4, 6, torch.float64))
    lengths = None if lengths is None else torch.tensor(lengths)
    bands = torch.randn(36, 4, dtype=torch.float64)
    forth = (ops.wavelet_analysis(x, filters, 2, lengths) * bands).sum()
    back = (ops.wavelet_synthesis(bands, filters, 2, 3, 11, lengths) * x).sum()
    torch.testing.assert_close(forth, back, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_gradients(name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    lengths = torch.tensor([7, 3])
    x, filters = inputs(2, 7, 2, 4, torch.float64)
    bands = torch.randn(16, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ops.wavelet_analysis(a, b, 2, lengths), (x, filters))
    assert torch.autograd.gradcheck(lambda a, b: ops.wavelet_synthesis(a, b, 2, 2, 7, lengths), (bands, filters))


@pytest.mark.parametrize("name", ["reference", "portable", "cpu"])
def test_padding_is_neither_read_nor_written(name, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    x, filters = (tensor.detach() for tensor in inputs(3, 12, 2, 6))
    lengths = torch.tensor([5, 0, 12])
    poisoned = x.clone()
    poisoned[0, 5:] = float("nan")
    poisoned[1] = float("inf")
    poisoned.requires_grad_()
    bands = ops.wavelet_analysis(poisoned, filters, 2, lengths)
    alone = ops.wavelet_analysis(x[:1, :5], filters, 2)
    # Of 5 rows, 8 make the period: 2, 2 and 4 coefficients, at the offsets of 12 rows.
    rows = of_samples(bands, 3, 12, 2)
    for start, own, count in [(0, 0, 2), (3, 2, 2), (6, 4, 4)]:
        torch.testing.assert_close(rows[0, start : start + count], alone[own : own + count])
    assert (rows[0, [2, 5, 10, 11]] == 0).all() and (rows[1] == 0).all()
    (gradient,) = torch.autograd.grad(bands.sum(), poisoned)
    assert (gradient[0, 5:] == 0).all() and (gradient[1] == 0).all()

    poisoned = rows.detach().clone()
    poisoned[0, [2, 5, 10, 11]] = float("nan")
    poisoned[1] = float("nan")
    poisoned.requires_grad_()
    bands = join_bands(poisoned.split(band_rows(12, 2), dim=1))
    rows = ops.wavelet_synthesis(bands, filters, 2, 3, 12, lengths)
    torch.testing.assert_close(rows[:1, :5], ops.wavelet_synthesis(alone, filters, 2, 1, 5))
    assert (rows[0, 5:] == 0).all() and (rows[1] == 0).all()
    (gradient,) = torch.autograd.grad(rows.sum(), poisoned)
    assert (gradient[0, [2, 5, 10, 11]] == 0).all() and (gradient[1] == 0).all()


@pytest.mark.parametrize("trained", [0, 1])
def test_gradients_of_rows_or_of_taps_alone(trained, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
    tensors = [tensor.detach() for tensor in inputs(2, 9, 3, 4, torch.float64, per_channel=False)]
    tensors[trained].requires_grad_()

    def there_and_back(tensor):
        x, filters = (tensor, tensors[1]) if trained == 0 else (tensors[0], tensor)
        return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, 2).sin(), filters, 2, 2, 9)

    assert torch.autograd.gradcheck(there_and_back, (tensors[trained],))


def test_rows_need_not_be_contiguous(monkeypatch):
    x, filters = (tensor.detach() for tensor in inputs(2, 9, 3, 4))
    apart = torch.randn(2, 3, 9).transpose(1, 2).copy_(x).requires_grad_()
    results = []
    for rows in (x.requires_grad_(), apart):
        monkeypatch.setenv("LONGMIX_KERNELS", "cpu")
        bands = ops.wavelet_analysis(rows, filters.t().contiguous().t(), 2)
        back = ops.wavelet_synthesis(bands.t().contiguous().t(), filters, 2, 2, 9)
        results.append((bands, back, *torch.autograd.grad(back.sum(), rows)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32(dtype, relative_rms, monkeypatch):
    x, filters = (tensor.detach().to(dtype) for tensor in inputs(2, 20, 8, 8))
    bands = ops.wavelet_analysis(x, filters, 2)
    rows = ops.wavelet_synthesis(bands, filters, 2, 2, 20)
    assert bands.dtype == rows.dtype == dtype
    monkeypatch.setenv("LONGMIX_KERNELS", "reference")
    assert relative_rms(bands, ops.wavelet_analysis(x.double(), filters.double(), 2)) < 2**-8
    assert relative_rms(rows, ops.wavelet_synthesis(bands.double(), filters.double(), 2, 2, 20)) < 2**-8


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_portable_for_gpus_rounds_nowhere_else(dtype, levels, monkeypatch):
    """Rows that are read as they are give what rows in fp32 give, to the bit; gradients of the taps likewise."""
    monkeypatch.setenv("LONGMIX_KERNELS", "portable")
    lengths, results = torch.tensor([21, 6]), []
    for gpu in (False, True):
        monkeypatch.setattr(portable, "for_gpu", lambda tensor, gpu=gpu: gpu)
        x, filters = inputs(2, 21, 8, 6)
        rows = x.detach().to(dtype).requires_grad_()
        bands = ops.wavelet_analysis(rows, filters, levels, lengths)
        back = ops.wavelet_synthesis(bands * 1.5, filters, levels, 2, 21, lengths)
        results.append((bands, back, *torch.autograd.grad(back.float().square().mean(), (rows, filters))))
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_compiles_without_a_break():
    x, filters = inputs(2, 10, 3, 4)
    lengths = torch.tensor([10, 7])

    def there_and_back(x, filters, lengths):
        bands = ops.wavelet_analysis(x, filters, 2, lengths)
        return ops.wavelet_synthesis(bands, filters, 2, 2, 10, lengths)

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(there_and_back(x, filters, lengths).square().sum(), (x, filters))
    result = torch.autograd.grad(compiled(x, filters, lengths).square().sum(), (x, filters))
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_nothing_in_nothing_out(shape):
    x = torch.zeros(shape)
    bands = ops.wavelet_analysis(x, torch.ones(4), 2)
    assert bands.shape == (shape[0] * padded(shape[1], 2), 3)
    assert ops.wavelet_synthesis(bands, torch.ones(4), 2, *shape[:2]).shape == shape


@pytest.mark.parametrize(
    ("filters", "levels", "lengths", "message"),
    [
        (torch.ones(3), 1, None, r"filters has shape \(3,\); allowed: .*even"),
        (torch.ones(4, 2), 1, None, r"filters has shape \(4, 2\); allowed: \(T,\) or \(T, 3\)"),
        (torch.ones(0), 1, None, "even number"),
        (torch.ones(4), 0, None, "levels is 0; allowed: at least 1"),
        (torch.ones(4), 1, torch.tensor([1]), r"lengths has shape \(1,\); allowed: \(2,\)"),
    ],
)
def test_shapes_that_do_not_fit(filters, levels, lengths, message):
    with pytest.raises(ValueError, match=message):
        ops.wavelet_analysis(torch.zeros(2, 6, 3), filters, levels, lengths)
    with pytest.raises(ValueError, match=message):
        ops.wavelet_synthesis(torch.zeros(12, 3), filters, levels, 2, 6, lengths)
    with pytest.raises(ValueError, match="bands has 12 rows; allowed: 16, for B = 2, N = 6 at 2 levels"):
        ops.wavelet_synthesis(torch.zeros(12, 3), torch.ones(4), 2, 2, 6)
    with pytest.raises(ValueError, match=r"bands has shape \(2, 6, 3\); allowed: \(B N', D\)"):
        ops.wavelet_synthesis(torch.zeros(2, 6, 3), torch.ones(4), 1, 2, 6)


def test_an_export_holds_for_any_number_of_samples():
    class ThereAndBack(torch.nn.Module):
        def forward(self, x, filters):
            return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, 2), filters, 2, *x.shape[:2])

    x, filters = (tensor.detach() for tensor in inputs(3, 24, 4, 4))
    samples = torch.export.Dim("samples", min=2, max=64)
    exported = torch.export.export(ThereAndBack(), (x, filters), dynamic_shapes=({0: samples}, None)).module()
    more = torch.cat([x, x.flip(0)])
    torch.testing.assert_close(exported(more, filters), ThereAndBack()(more, filters))
