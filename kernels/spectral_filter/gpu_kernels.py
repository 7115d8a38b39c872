"""S3Attention's Fourier convolution in Triton, around PyTorch's transforms.

What comes before and after a transform, and between two, is one launch each: means of segments, products with the
response, and rows that are masked, turned and put beside x; backward likewise, where one walk over the transformed
gradient gives what both the means and the spectrum get.
"""

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from .programs_gpu import apply_response, correlate, finish_rows, segment_means, spread_means, turn_rows
from .responses import lengthened_correlation, period_of, response_of, spectrum_gradient, working_dtype

# Blocks of rows and channels, and of frequencies with half as many channels.
ROWS, CHANNELS, BINS = (16, 16, 8) if interpreted() else (32, 64, 32)
# Of a program that sums over channels and samples: frequencies, and channels at most.
SUMMED_BINS, SUMMED_CHANNELS = (8, 8) if interpreted() else (8, 128)
WARPS = 1 if interpreted() else 8  # of programs that keep the response


def spectral_filter(x, spectrum, n_fft, segments, lengths, beside):
    """Results (B, N, D) or (B, N, 2 D), and the transforms of the means; see operator.py."""
    batch, positions, features = x.shape
    width, period = features // segments, period_of(n_fft, positions)
    wide = working_dtype(x)
    means = x.new_empty(batch, segments, positions, dtype=wide)
    segment_means[checked(triton.cdiv(positions, ROWS), segments, batch)](
        *(x, lengths, means, positions, features, width, period * width, ROWS, _block(width, CHANNELS))
    )
    transformed = torch.view_as_real(torch.fft.rfft(means, n=period, dim=-1))
    response, *strides = _response(spectrum, n_fft, positions, wide)
    bins, channels = transformed.shape[2], _block(width, CHANNELS // 2)
    product = transformed.new_empty(batch, features, bins, 2)
    apply_response[checked(triton.cdiv(bins, BINS), segments * triton.cdiv(width, channels))](
        *(transformed, response, product, batch, width, bins, *strides, _last(n_fft)),
        *(transformed.stride(0), product.stride(0), channels, BINS),
        num_warps=WARPS,
    )
    filtered = torch.fft.irfft(torch.view_as_complex(product), n=period, dim=-1, norm="forward")
    result = x.new_empty(batch, positions, features * (1 + beside))
    finish_rows[_blocks(x)](*(filtered, x, lengths, result, positions, features, period, beside, ROWS, CHANNELS))
    return result, transformed


def spectral_filter_backward(gradient, transformed, spectrum, n_fft, lengths):
    """Gradients of x and spectrum."""
    (batch, positions, stride), features = gradient.shape, spectrum.shape[1]
    segments, bins = transformed.shape[1:3]
    width, period = features // segments, period_of(n_fft, positions)
    of_x = gradient.new_empty(batch, positions, features)
    rows = transformed.new_empty(batch, features, positions)
    turn_rows[_blocks(of_x)](*(gradient, lengths, rows, positions, features, stride, ROWS, CHANNELS))
    rows = torch.view_as_real(torch.fft.rfft(rows, n=period, dim=-1))

    response, *strides = _response(spectrum, n_fft, positions, transformed.dtype)
    channels = _block(width, SUMMED_CHANNELS)
    blocks = triton.cdiv(width, channels)
    of_means = transformed.new_empty(batch, segments, blocks, bins, 2)
    whole = period == n_fft
    of_response = torch.empty_like(spectrum) if whole else transformed.new_empty(features, bins, 2)
    of_strides = of_response.stride()[:2] if whole else of_response.stride()[1::-1]
    correlate[checked(triton.cdiv(bins, SUMMED_BINS), segments * blocks)](
        *(rows, transformed, response, of_means, of_response, batch, width, bins, *strides, _last(n_fft)),
        *(rows.stride(0), transformed.stride(0), of_means.stride(0), *of_strides, whole, channels, SUMMED_BINS),
        num_warps=WARPS,
    )
    if not whole:
        correlation = lengthened_correlation(torch.view_as_complex(of_response), n_fft, positions)
        of_response = spectrum_gradient(correlation, torch.empty_like(spectrum), n_fft)

    of_means = of_means.squeeze(2) if blocks == 1 else of_means.sum(2)
    of_means = torch.fft.irfft(torch.view_as_complex(of_means), n=period, dim=-1, norm="forward")
    spread_means[_blocks(of_x)](
        *(of_means, gradient, lengths, of_x, positions, features, width, period, stride),
        *(stride > features, ROWS, CHANNELS),
    )
    return of_x, of_response


def _response(spectrum, n_fft, positions, dtype):
    """The kernels' response among N positions, of any memory layout, and its strides of frequencies and channels."""
    if 2 * positions >= n_fft:
        return spectrum, *spectrum.stride()[:2]
    response = torch.view_as_real(response_of(spectrum, n_fft, positions, dtype))
    return response, *response.stride()[1::-1]


def _last(n_fft: int) -> int:
    """The frequency that is, besides 0, its own conjugate; 0: there is none."""
    return n_fft // 2 if n_fft % 2 == 0 else 0


def _block(width: int, most: int) -> int:
    """Channels of a block in segments of so many."""
    return min(most, triton.next_power_of_2(width))


def _blocks(x: torch.Tensor) -> tuple[int, ...]:
    """Programs for blocks of rows and channels of x (B, N, D)."""
    batch, positions, features = x.shape
    return checked(triton.cdiv(positions, ROWS), triton.cdiv(features, CHANNELS), batch)
