"""The Fourier convolution: explicit matrices, fast transforms, and the choice between them."""

import numpy
import pytest
import torch

from longmix.kernels import ops
from longmix.kernels.selection import obstacle


def run(name, monkeypatch, *arguments, **options):
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    return ops.spectral_filter(*arguments, **options)


def inputs(batch, positions, features, n_fft, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, positions, features, generator=generator, dtype=dtype, requires_grad=True)
    spectrum = torch.randn(n_fft // 2 + 1, features, 2, generator=generator, dtype=dtype, requires_grad=True)
    return x, spectrum


SHAPES = [
    # batch, positions, features, n_fft, segments, lengths
    (2, 1, 1, 1, None, None),
    (2, 1, 4, 16, 2, [1, 0]),
    (1, 2, 4, 2, 4, None),
    (3, 3, 6, 7, 3, [3, 2, 1]),
    (2, 17, 8, 17, 2, [17, 5]),
    (2, 16, 8, 33, 8, [16, 1]),
    (2, 16, 8, 32, 1, None),
    (3, 13, 12, 64, 4, [13, 0, 7]),
    (1, 64, 100, 64, 10, None),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_portable_equals_the_explicit_matrix(shape, relative_rms, monkeypatch):
    batch, positions, features, n_fft, segments, lengths = shape
    x, spectrum = inputs(batch, positions, features, n_fft)
    lengths = None if lengths is None else torch.tensor(lengths)
    cotangent = torch.randn(batch, positions, features)
    results = {}
    for name in ("reference", "portable"):
        result = run(name, monkeypatch, x, spectrum, n_fft, segments, lengths)
        assert result.dtype == x.dtype
        results[name] = (result, *torch.autograd.grad(result, (x, spectrum), cotangent))
    for value, truth, tolerance in zip(results["portable"], results["reference"], (1e-5, 1e-4, 1e-4), strict=True):
        assert relative_rms(value, truth) < tolerance


def test_reference_equals_the_convolution_sum(monkeypatch):
    n_fft, positions = 6, 5
    x, spectrum = inputs(1, positions, 4, n_fft, torch.float64)
    kernel = torch.fft.irfft(torch.view_as_complex(spectrum.detach()), n=n_fft, dim=0)
    expected = torch.zeros(positions, 4, dtype=torch.float64)
    for time in range(positions):
        for channel in range(4):
            for source in range(positions):
                mean = x[0, source, channel // 2 * 2 : channel // 2 * 2 + 2].mean()
                expected[time, channel] += kernel[(time - source) % n_fft, channel] * mean.detach()
    for name in ("reference", "portable"):
        result = run(name, monkeypatch, x, spectrum, n_fft, 2)
        torch.testing.assert_close(result[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["reference", "portable"])
@pytest.mark.parametrize("n_fft", [5, 12])
def test_gradients(name, n_fft, monkeypatch):
    x, spectrum = inputs(2, 5, 4, n_fft, torch.float64)
    lengths = torch.tensor([5, 3])
    monkeypatch.setenv("LONGMIX_KERNELS", name)
    assert torch.autograd.gradcheck(lambda a, b: ops.spectral_filter(a, b, n_fft, 2, lengths), (x, spectrum))


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", ["reference", "portable"])
def test_padding_is_neither_read_nor_written(name, beside, monkeypatch):
    x, spectrum = inputs(2, 9, 4, 16)
    lengths = torch.tensor([4, 0])
    poisoned = x.detach().clone()
    poisoned[0, 4:] = float("nan")
    poisoned[1] = float("inf")
    poisoned.requires_grad_()
    result = run(name, monkeypatch, poisoned, spectrum, 16, 2, lengths, beside)
    alone = run(name, monkeypatch, x[:1, :4], spectrum, 16, 2, beside=beside)
    assert result.shape[2] == 4 * (1 + beside)
    torch.testing.assert_close(result[:1, :4], alone, rtol=1e-5, atol=1e-5)
    assert (result[0, 4:] == 0).all() and (result[1] == 0).all()
    gradient, of_spectrum = torch.autograd.grad(result.sum(), (poisoned, spectrum))
    assert (gradient[0, 4:] == 0).all() and (gradient[1] == 0).all() and of_spectrum.isfinite().all()


@pytest.mark.parametrize("name", ["portable", "triton"])
@pytest.mark.parametrize(("positions", "n_fft"), [(5, 6), (5, 7), (4, 11), (3, 12)])
def test_no_library_has_imaginary_parts_to_ignore(name, positions, n_fft, relative_rms, monkeypatch, require_or_skip):
    """Those for GPUs let them into their results, where a transform to real numbers has them at 0 or the middle."""
    if name == "triton" and (reason := obstacle("spectral_filter", name, "cpu")) is not None:
        require_or_skip("triton", reason)
    x, spectrum = inputs(2, positions, 4, n_fft)
    cotangent = torch.randn(2, positions, 4)
    results = {}
    for implementation in ("reference", name):
        result = run(implementation, monkeypatch, x, spectrum, n_fft, 2)
        results[implementation] = (result, *torch.autograd.grad(result, (x, spectrum), cotangent))
        monkeypatch.setattr(torch.fft, "irfft", unforgiving)
    for value, truth in zip(results[name], results["reference"], strict=True):
        assert relative_rms(value, truth) < 1e-5


@pytest.mark.parametrize("positions", [4, 8])
def test_a_single_channel_keeps_its_spectrum(positions, monkeypatch):
    """Turned round, it is as contiguous as before."""
    x, spectrum = inputs(2, positions, 1, 11)
    before = spectrum.detach().clone()
    run("portable", monkeypatch, x, spectrum, 11).sum().backward()
    assert torch.equal(spectrum, before)


def unforgiving(transformed, n, dim, norm=None, irfft=torch.fft.irfft):
    """irfft that adds what it should ignore."""
    real_alone = transformed[..., :: n // 2] if n % 2 == 0 else transformed[..., :1]
    return irfft(transformed, n=n, dim=dim, norm=norm) + real_alone.imag.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32(dtype, relative_rms, monkeypatch):
    x, spectrum = (tensor.detach().to(dtype) for tensor in inputs(2, 20, 8, 32))
    truth = run("reference", monkeypatch, x.double(), spectrum.double(), 32, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = run("portable", monkeypatch, x, spectrum, 32, 4)
    assert result.dtype == dtype
    assert relative_rms(result, truth) < 2**-8


@pytest.mark.parametrize(
    ("n_fft", "segments", "message"),
    [(8, None, "at most n_fft"), (16, 3, "divisors of the 4 channels"), (20, 2, "spectrum has shape")],
)
def test_shapes_that_do_not_fit(n_fft, segments, message):
    x = torch.zeros(1, 9, 4)
    spectrum = torch.zeros(9 if n_fft != 8 else 5, 4, 2)
    with pytest.raises(ValueError, match=message):
        ops.spectral_filter(x, spectrum, n_fft, segments)


def test_offsets_in_triton_pass_what_32_bits_hold(monkeypatch, require_or_skip):
    """Two samples of two segments with 2^30 frequencies: where programs would read and write, without the memory."""
    if (reason := obstacle("spectral_filter", "triton", "cpu")) is not None:
        require_or_skip("triton", reason)
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from longmix.kernels.spectral_filter.programs_gpu import apply_response, correlate

    touched = []

    def load(self, pointers, mask, other, *_):
        touched.extend(pointers.data[mask.data].tolist())
        return TensorHandle(numpy.zeros(pointers.data.shape, numpy.float32), pointers.get_element_ty())

    def store(self, pointers, value, mask, *_):
        touched.extend(pointers.data[mask.data].tolist())

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", store)
    bins, channels = 2**30, 1
    transforms, products, means, response = (torch.zeros(2, dtype=torch.float32) for _ in range(4))
    spectrum = torch.zeros(2)
    of_one, sample = (2, 2 * bins), 4 * bins
    sizes = 2, channels, bins, *of_one
    apply_response[(1, 2)](transforms, response, products, *sizes, 0, sample, sample, channels, 2)
    correlate[(1, 2)](
        *(products, transforms, response, means, spectrum, *sizes, 0),
        *(sample, sample, sample, *of_one, True, channels, 2),
    )
    for tensor, rows in ((transforms, 4), (products, 4), (means, 4), (response, 2), (spectrum, 2)):
        # Two frequencies of each row, real and imaginary parts.
        places = {4 * (2 * bins * row + number) for row in range(rows) for number in range(4)}
        if tensor is response:
            places -= {4 * (2 * bins * row + 1) for row in range(rows)}  # frequency 0 is real
        assert {address - tensor.data_ptr() for address in touched} >= places


def test_compiles_without_breaks(monkeypatch):
    monkeypatch.delenv("LONGMIX_KERNELS", raising=False)
    x, spectrum = inputs(2, 7, 4, 20)
    lengths = torch.tensor([7, 3])

    def function(x, spectrum):
        return ops.spectral_filter(x.sin(), spectrum, 20, 2, lengths).sin()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    cotangent = torch.randn(x.shape)
    results = [
        (result, *torch.autograd.grad(result, (x, spectrum), cotangent))
        for result in (function(x, spectrum), compiled(x, spectrum))
    ]
    for eager, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager)
