"""S3Attention's Fourier convolution by fast Fourier transforms over contiguous rows."""

import torch

from ..rows import keep_valid, valid_rows


@torch.compiler.disable
def spectral_filter(
    x: torch.Tensor, spectrum: torch.Tensor, n_fft: int, segments: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.spectral_filter`. The result is a transposed view of a (B, D, n) tensor.

    Time is made the last axis of small tensors first (r segments, one spectrum): transforms along a strided axis take
    two to three times as long on a CPU. Compilers are kept out, since they make no code for complex numbers.
    """
    batch, positions, features = x.shape
    width = features // segments
    working = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(x.device.type, enabled=False):
        means = x.to(working).view(batch, positions, segments, width).mean(-1) if width > 1 else x.to(working)
        valid = valid_rows(lengths, positions)
        means = keep_valid(means.transpose(1, 2), valid, axis=2)
        response = torch.view_as_complex(spectrum.to(working).transpose(0, 1).contiguous())
        period = n_fft
        if 2 * positions < n_fft:
            response, period = _shorten(response, n_fft, positions)
        transformed = torch.fft.rfft(means.contiguous(), n=period, dim=-1)
        product = transformed.unsqueeze(2) * response.view(segments, width, -1)
        result = torch.fft.irfft(product.flatten(1, 2), n=period, dim=-1)[..., :positions]
        result = keep_valid(result, valid, axis=2)
    return result.to(x.dtype).transpose(1, 2)


def _shorten(response: torch.Tensor, n_fft: int, positions: int) -> tuple[torch.Tensor, int]:
    """The response (D, n_fft // 2 + 1) at the shorter period 2 N, and that period.

    Among N positions only the lags -(N - 1) .. N - 1 occur; a kernel that holds them, and zero at lag N, convolves
    alike. One transform of the kernels then saves the larger ones of every sample.
    """
    kernel = torch.fft.irfft(response, n=n_fft, dim=-1)
    gap = kernel.new_zeros(kernel.shape[0], 1)
    lags = torch.cat([kernel[:, :positions], gap, kernel[:, n_fft - positions + 1 :]], dim=1)
    return torch.fft.rfft(lags, dim=-1), 2 * positions
