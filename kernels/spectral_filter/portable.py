"""S3Attention's Fourier convolution by fast Fourier transforms over contiguous rows.

Time is made the last axis of small tensors first (r segments, one spectrum): transforms along a strided axis take two
to three times as long on a CPU. Compilers make no code for complex numbers; they see one operator of real tensors. It
keeps the segments' transforms for its backward pass. No transform scales: a factor of 1 / period is on the segments,
which are small.
"""

import torch

from ..common.rows import keep_valid, valid_rows
from ..selection import stands_for
from .responses import (
    contiguous_copy,
    empty_transforms,
    lengthened_correlation,
    period_of,
    response_of,
    spectrum_gradient,
    working_dtype,
)


def spectral_filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None, beside: bool
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`. Without x beside it the result is a view of a (B, D, N) tensor."""
    return _filter(x, spectrum, n_fft, segments, lengths, beside)[0]


@torch.library.custom_op("longmix::portable_spectral_filter", mutates_args=())
def _filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None, beside: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (B, N, D) and spectrum of any floating dtypes -> (B, N, D) or, with x, (B, N, 2 D) in the dtype of x, and what
    the backward pass needs: the conjugate transforms of the segments' means, (B, r, period // 2 + 1, 2), by the period.
    """
    batch, positions, features = x.shape
    period = period_of(n_fft, positions)
    with torch.autocast(x.device.type, enabled=False):
        response = response_of(spectrum, n_fft, positions, working_dtype(x))
        transformed = torch.fft.rfft(_scaled_means(x, segments, lengths, period), n=period, dim=-1)
        product = transformed.unsqueeze(2) * response.view(segments, features // segments, -1)
        result = torch.fft.irfft(product.flatten(1, 2), n=period, dim=-1, norm="forward")[..., :positions]
        result, kept = _mask(result, lengths), torch.view_as_real(torch.conj_physical(transformed))
        if not beside:
            return result.to(x.dtype).contiguous().transpose(1, 2), kept
        joined = x.new_empty(batch, positions, 2 * features)
        joined[..., :features].copy_(result.transpose(1, 2))
        joined[..., features:].copy_(keep_valid(x, valid_rows(lengths, positions)))
        return joined, kept


@_filter.register_fake
def _(x, spectrum, n_fft, segments, lengths, beside):
    batch, positions, features = x.shape
    shape = (batch, positions, 2 * features) if beside else (batch, features, positions)
    result = x.new_empty(shape) if beside else x.new_empty(shape).transpose(1, 2)
    return result, empty_transforms(x, n_fft, segments)


@torch.library.custom_op("longmix::portable_spectral_filter_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    transformed: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and spectrum for that of the result: correlations with the kernel and the means."""
    (batch, positions, _), features = gradient.shape, spectrum.shape[1]
    segments, wide = transformed.shape[1], transformed.dtype
    width, period = features // segments, period_of(n_fft, positions)
    with torch.autocast(gradient.device.type, enabled=False):
        response = response_of(spectrum, n_fft, positions, wide)
        rows = _mask(contiguous_copy(gradient[..., :features].transpose(1, 2), wide), lengths)
        rows = torch.fft.rfft(rows, n=period, dim=-1).unflatten(1, (segments, width))
        # Not conj(), which only marks a tensor: operators in compiled graphs run where the mark is not read.
        of_means = (rows * torch.conj_physical(response).view(segments, width, -1)).sum(2)
        of_means = _mask(torch.fft.irfft(of_means, n=period, dim=-1, norm="forward")[..., :positions], lengths)
        of_x = gradient.new_empty(batch, positions, segments, width)
        of_each, scale = of_means.transpose(1, 2).unsqueeze(3).expand_as(of_x), 1 / (period * width)
        if gradient.shape[2] == features:
            torch.mul(of_each, scale, out=of_x)
        else:
            of_beside = keep_valid(gradient[..., features:], valid_rows(lengths, positions)).unflatten(
                2, (segments, -1)
            )
            torch.add(of_beside, of_each, alpha=scale, out=of_x)
        correlation = (rows * torch.view_as_complex(transformed).unsqueeze(2)).sum(0).flatten(0, 1)
        if period < n_fft:
            correlation = lengthened_correlation(correlation, n_fft, positions)
        of_spectrum = spectrum_gradient(correlation, torch.empty_like(spectrum), n_fft)
    return of_x.flatten(2), of_spectrum


@_backward.register_fake
def _(gradient, transformed, spectrum, n_fft, lengths):
    return gradient.new_empty(*gradient.shape[:2], spectrum.shape[1]), torch.empty_like(spectrum)


def _save(ctx, inputs, output):
    _, spectrum, ctx.n_fft, _, lengths, _ = inputs
    ctx.save_for_backward(output[1], spectrum, lengths)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, gradient, _):
    if gradient is None:
        return None, None, None, None, None, None
    transformed, spectrum, lengths = ctx.saved_tensors
    return *_backward(gradient, transformed, spectrum, ctx.n_fft, lengths), None, None, None, None


_filter.register_autograd(_differentiate, setup_context=_save)


def _scaled_means(x: torch.Tensor, segments: int, lengths: torch.Tensor | None, period: int) -> torch.Tensor:
    """Means of the segments divided by the period, (B, r, N), zero at and past each length."""
    wide = working_dtype(x)
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
