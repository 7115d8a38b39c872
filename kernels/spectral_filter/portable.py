"""S3Attention's Fourier convolution by fast Fourier transforms over contiguous rows.

Time is made the last axis of small tensors first (r segments, one spectrum): transforms along a strided axis take two
to three times as long on a CPU. Compilers make no code for complex numbers; they see one operator of real tensors,
whose backward pass transforms the segments again instead of storing their transforms.
"""

import torch

from ..common.rows import keep_valid, valid_rows


def spectral_filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`. The result is a transposed view of a (B, D, N) tensor."""
    return _filter(x, spectrum, n_fft, segments, lengths).transpose(1, 2)


@torch.library.custom_op("longmix::spectral_filter", mutates_args=())
def _filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """x (B, N, D) and spectrum of any floating dtypes -> (B, D, N) in the dtype of x."""
    positions, features = x.shape[1:]
    with torch.autocast(x.device.type, enabled=False):
        response, period = _response(spectrum.to(_working(x)), n_fft, positions)
        transformed = torch.fft.rfft(_means(x, segments, lengths), n=period, dim=-1)
        product = transformed.unsqueeze(2) * response.view(segments, features // segments, -1)
        result = torch.fft.irfft(product.flatten(1, 2), n=period, dim=-1)[..., :positions]
        return _mask(result, lengths).to(x.dtype).contiguous()


@_filter.register_fake
def _(x, spectrum, n_fft, segments, lengths):
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1])


@torch.library.custom_op("longmix::spectral_filter_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    spectrum: torch.Tensor,
    n_fft: int,
    segments: int,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and spectrum for that of the result, (B, D, N): correlations with the kernel and the means."""
    batch, positions, features = x.shape
    width = features // segments
    with torch.autocast(x.device.type, enabled=False):
        response, period = _response(spectrum.to(_working(x)), n_fft, positions)
        transformed = torch.fft.rfft(_means(x, segments, lengths), n=period, dim=-1)
        gradient = _mask(gradient.to(_working(x)), lengths)
        gradient = torch.fft.rfft(gradient.contiguous(), n=period, dim=-1).unflatten(1, (segments, width))
        # Not conj(), which only marks a tensor: operators in compiled graphs run where the mark is not read.
        of_means = (gradient * torch.conj_physical(response).view(segments, width, -1)).sum(2)
        of_means = _mask(torch.fft.irfft(of_means, n=period, dim=-1)[..., :positions], lengths)
        of_x = (of_means / width).to(x.dtype).transpose(1, 2).unsqueeze(3).expand(batch, positions, segments, width)
        of_response = (gradient * torch.conj_physical(transformed).unsqueeze(2)).sum(0).flatten(0, 1)
        of_spectrum = _of_spectrum(of_response, n_fft, positions).transpose(0, 1).to(spectrum.dtype)
    return of_x.reshape(x.shape).contiguous(), of_spectrum.contiguous()


@_backward.register_fake
def _(gradient, x, spectrum, n_fft, segments, lengths):
    return x.new_empty(x.shape), spectrum.new_empty(spectrum.shape)


def _save(ctx, inputs, output):
    x, spectrum, ctx.n_fft, ctx.segments, lengths = inputs
    ctx.save_for_backward(x, spectrum, lengths)


def _differentiate(ctx, gradient):
    x, spectrum, lengths = ctx.saved_tensors
    return *_backward(gradient, x, spectrum, ctx.n_fft, ctx.segments, lengths), None, None, None


_filter.register_autograd(_differentiate, setup_context=_save)


def _working(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _means(x: torch.Tensor, segments: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Means of the segments, (B, r, N), zero at and past each length."""
    means = x.to(_working(x)).unflatten(2, (segments, -1))
    means = means.mean(3) if segments < x.shape[2] else means[..., 0]
    return _mask(means.transpose(1, 2), lengths).contiguous()


def _mask(rows: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """rows (B, .., N), zero at and past each length."""
    return keep_valid(rows, valid_rows(lengths, rows.shape[-1]), axis=rows.dim() - 1)


def _response(spectrum: torch.Tensor, n_fft: int, positions: int) -> tuple[torch.Tensor, int]:
    """The response (D, period // 2 + 1) of the kernels among N positions, and the period: n_fft, or 2 N if shorter.

    Only the lags -(N - 1) .. N - 1 occur; a kernel that holds them, and zero at lag N, convolves alike. One transform
    of the kernels then saves the larger ones of every sample.
    """
    response = torch.view_as_complex(spectrum.transpose(0, 1).contiguous())
    if 2 * positions >= n_fft:
        return response, n_fft
    kernel = torch.fft.irfft(response, n=n_fft, dim=-1)
    gap = kernel.new_zeros(kernel.shape[0], 1)
    lags = torch.cat([kernel[:, :positions], gap, kernel[:, n_fft - positions + 1 :]], dim=1)
    return torch.fft.rfft(lags, dim=-1), 2 * positions


def _of_spectrum(correlation: torch.Tensor, n_fft: int, positions: int) -> torch.Tensor:
    """The gradient (D, n_fft // 2 + 1, 2) of the spectrum, from that of the response at `_response`'s period."""
    if 2 * positions < n_fft:
        lags = torch.fft.irfft(correlation, n=2 * positions, dim=-1)
        kernel = lags.new_zeros(lags.shape[0], n_fft)
        kernel[:, :positions] = lags[:, :positions]
        kernel[:, n_fft - positions + 1 :] = lags[:, positions + 1 :]
        correlation = torch.fft.rfft(kernel, dim=-1)
    # Each frequency stands for itself and its conjugate, except 0 and, for an even period, n_fft / 2, which are real.
    weight = torch.full((n_fft // 2 + 1, 2), 2 / n_fft, dtype=correlation.real.dtype, device=correlation.device)
    for own_conjugate in (0, n_fft // 2) if n_fft % 2 == 0 else (0,):
        weight[own_conjugate, 0], weight[own_conjugate, 1] = 1 / n_fft, 0
    return torch.view_as_real(correlation) * weight
