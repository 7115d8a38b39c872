"""S3Attention's Fourier convolution by fast Fourier transforms over contiguous rows.

Time is made the last axis of small tensors first (r segments, one spectrum): transforms along a strided axis take two
to three times as long on a CPU. Compilers make no code for complex numbers; they see one operator of real tensors. It
keeps the segments' transforms for its backward pass. No transform scales: a factor of 1 / period is on the segments,
which are small.
"""

import torch

from ..common.rows import keep_valid, valid_rows
from ..selection import stands_for


def spectral_filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`. The result is a transposed view of a (B, D, N) tensor."""
    return _filter(x, spectrum, n_fft, segments, lengths)[0].transpose(1, 2)


@torch.library.custom_op("longmix::spectral_filter", mutates_args=())
def _filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (B, N, D) and spectrum of any floating dtypes -> (B, D, N) in the dtype of x, and for the backward pass the
    conjugate transforms of the segments' means, (B, r, period // 2 + 1, 2), divided by the period.
    """
    positions, features = x.shape[1:]
    with torch.autocast(x.device.type, enabled=False):
        response, period = _response(spectrum, n_fft, positions, _working(x))
        transformed = torch.fft.rfft(_scaled_means(x, segments, lengths, period), n=period, dim=-1)
        product = transformed.unsqueeze(2) * response.view(segments, features // segments, -1)
        result = torch.fft.irfft(product.flatten(1, 2), n=period, dim=-1, norm="forward")[..., :positions]
        return _mask(result, lengths).to(x.dtype).contiguous(), torch.view_as_real(torch.conj_physical(transformed))


@_filter.register_fake
def _(x, spectrum, n_fft, segments, lengths):
    bins = _period(n_fft, x.shape[1]) // 2 + 1
    return (
        x.new_empty(x.shape[0], x.shape[2], x.shape[1]),
        x.new_empty(x.shape[0], segments, bins, 2, dtype=_working(x)),
    )


@torch.library.custom_op("longmix::spectral_filter_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    transformed: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and spectrum for that of the result, (B, D, N): correlations with the kernel and the means."""
    batch, features, positions = gradient.shape
    segments, wide = transformed.shape[1], transformed.dtype
    width = features // segments
    with torch.autocast(gradient.device.type, enabled=False):
        response, period = _response(spectrum, n_fft, positions, wide)
        rows = _mask(_contiguous(gradient, wide), lengths)
        rows = torch.fft.rfft(rows, n=period, dim=-1).unflatten(1, (segments, width))
        # Not conj(), which only marks a tensor: operators in compiled graphs run where the mark is not read.
        of_means = (rows * torch.conj_physical(response).view(segments, width, -1)).sum(2)
        of_means = _mask(torch.fft.irfft(of_means, n=period, dim=-1, norm="forward")[..., :positions], lengths)
        of_x = gradient.new_empty(batch, positions, segments, width)
        torch.mul(of_means.transpose(1, 2).unsqueeze(3).expand_as(of_x), 1 / (period * width), out=of_x)
        of_response = (rows * torch.view_as_complex(transformed).unsqueeze(2)).sum(0).flatten(0, 1)
        of_spectrum = _of_spectrum(of_response, torch.empty_like(spectrum), n_fft, positions)
    return of_x.flatten(2), of_spectrum


@_backward.register_fake
def _(gradient, transformed, spectrum, n_fft, lengths):
    batch, features, positions = gradient.shape
    return gradient.new_empty(batch, positions, features), torch.empty_like(spectrum)


def _save(ctx, inputs, output):
    _, spectrum, ctx.n_fft, _, lengths = inputs
    ctx.save_for_backward(output[1], spectrum, lengths)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, gradient, _):
    if gradient is None:
        return None, None, None, None, None
    transformed, spectrum, lengths = ctx.saved_tensors
    return *_backward(gradient, transformed, spectrum, ctx.n_fft, lengths), None, None, None


_filter.register_autograd(_differentiate, setup_context=_save)


def _working(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scaled_means(x: torch.Tensor, segments: int, lengths: torch.Tensor | None, period: int) -> torch.Tensor:
    """Means of the segments divided by the period, (B, r, N), zero at and past each length."""
    wide = _working(x)
    if segments < x.shape[2]:
        # GPUs change the dtype while they add up; CPUs are slower at this than at a copy.
        means = (x.to(wide) if stands_for(x.device) == "cpu" else x).unflatten(2, (segments, -1)).mean(3, dtype=wide)
    else:
        means = x.to(wide)
    means = _mask(means.transpose(1, 2), lengths)
    return torch.mul(means, 1 / period, out=means.new_empty(means.shape))


def _mask(rows: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """rows (B, .., N), zero at and past each length."""
    return keep_valid(rows, valid_rows(lengths, rows.shape[-1]), axis=rows.dim() - 1)


def _contiguous(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in that dtype and its axes' order: on GPUs in one copy, which CPUs are slower at than at two."""
    one = torch.preserve_format if stands_for(tensor.device) == "cpu" else torch.contiguous_format
    return tensor.to(dtype, memory_format=one).contiguous()


def _period(n_fft: int, positions: int) -> int:
    return min(n_fft, 2 * positions)


def _response(spectrum: torch.Tensor, n_fft: int, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """The response (D, period // 2 + 1) of the kernels among N positions, and the period: n_fft, or 2 N if shorter.

    Only the lags -(N - 1) .. N - 1 occur; a kernel that holds them, and zero at lag N, convolves alike. One transform
    of the kernels then saves the larger ones of every sample.
    """
    response = torch.view_as_complex(_contiguous(spectrum.transpose(0, 1), dtype))
    if 2 * positions >= n_fft:
        return response, n_fft
    kernel = torch.fft.irfft(response, n=n_fft, dim=-1)
    gap = kernel.new_zeros(kernel.shape[0], 1)
    lags = torch.cat([kernel[:, :positions], gap, kernel[:, n_fft - positions + 1 :]], dim=1)
    return torch.fft.rfft(lags, dim=-1), 2 * positions


def _of_spectrum(correlation: torch.Tensor, result: torch.Tensor, n_fft: int, positions: int) -> torch.Tensor:
    """The gradient of the spectrum, into `result` (n_fft // 2 + 1, D, 2), from that of the response at `_response`'s
    period, (D, period // 2 + 1), divided by the period.
    """
    if 2 * positions < n_fft:
        lags = torch.fft.irfft(correlation, n=2 * positions, dim=-1, norm="forward")
        kernel = lags.new_zeros(lags.shape[0], n_fft)
        kernel[:, :positions] = lags[:, :positions]
        kernel[:, n_fft - positions + 1 :] = lags[:, positions + 1 :]
        correlation = torch.fft.rfft(kernel, dim=-1, norm="forward")
    # Each frequency stands for itself and its conjugate, except 0 and, for an even period, n_fft / 2, which are real.
    torch.mul(torch.view_as_real(correlation).transpose(0, 1), 2, out=result)
    own_conjugate = result[:: n_fft // 2] if n_fft % 2 == 0 else result[:1]
    own_conjugate[..., 0].mul_(0.5)
    own_conjugate[..., 1].zero_()
    return result
