"""The learned spectrum as the response of kernels among the positions that there are, and back to its gradient."""

import torch

from ..selection import stands_for


def period_of(n_fft: int, positions: int) -> int:
    """The period that N positions are transformed at: n_fft, or 2 N if shorter."""
    return min(n_fft, 2 * positions)


def working_dtype(x: torch.Tensor) -> torch.dtype:
    """What x is computed in."""
    return torch.promote_types(x.dtype, torch.float32)


def empty_transforms(x: torch.Tensor, n_fft: int, segments: int) -> torch.Tensor:
    """Room for the transforms of the segments' means of x (B, N, D): (B, r, period // 2 + 1, 2)."""
    batch, positions, _ = x.shape
    return x.new_empty(batch, segments, period_of(n_fft, positions) // 2 + 1, 2, dtype=working_dtype(x))


def response_of(spectrum: torch.Tensor, n_fft: int, positions: int, dtype: torch.dtype) -> torch.Tensor:
    """The response (D, period // 2 + 1) of the kernels among N positions.

    It is real where a transform back to real numbers must find it so: libraries for CPUs ignore imaginary parts there,
    and those for GPUs may not.
    """
    response = contiguous_copy(spectrum.transpose(0, 1), dtype)
    response[:, _own_conjugates(n_fft), 1].zero_()
    response = torch.view_as_complex(response)
    return shortened_response(response, n_fft, positions) if 2 * positions < n_fft else response


def contiguous_copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in that dtype and its axes' order: on GPUs in one copy, which CPUs are slower at than at two."""
    if stands_for(tensor.device) == "cpu":
        return tensor.to(dtype).clone(memory_format=torch.contiguous_format)
    return tensor.to(dtype, memory_format=torch.contiguous_format, copy=True)


def shortened_response(response: torch.Tensor, n_fft: int, positions: int) -> torch.Tensor:
    """The response (D, N + 1) at the period 2 N < n_fft of the kernels that have the response (D, n_fft // 2 + 1).

    Only the lags -(N - 1) .. N - 1 occur; a kernel that holds them, and zero at lag N, convolves alike. One transform
    of the kernels then saves the larger ones of every sample.
    """
    kernel = torch.fft.irfft(response, n=n_fft, dim=-1)
    gap = kernel.new_zeros(kernel.shape[0], 1)
    lags = torch.cat([kernel[:, :positions], gap, kernel[:, n_fft - positions + 1 :]], dim=1)
    return torch.fft.rfft(lags, dim=-1)


def lengthened_correlation(correlation: torch.Tensor, n_fft: int, positions: int) -> torch.Tensor:
    """The gradient by `shortened_response`'s argument, (D, n_fft // 2 + 1), from that of its result, (D, N + 1).

    Both are correlations of rows, divided by the period 2 N.
    """
    lags = torch.fft.irfft(correlation, n=2 * positions, dim=-1, norm="forward")
    kernel = lags.new_zeros(lags.shape[0], n_fft)
    kernel[:, :positions] = lags[:, :positions]
    kernel[:, n_fft - positions + 1 :] = lags[:, positions + 1 :]
    return torch.fft.rfft(kernel, dim=-1, norm="forward")


def spectrum_gradient(correlation: torch.Tensor, result: torch.Tensor, n_fft: int) -> torch.Tensor:
    """The gradient of the spectrum, into `result` (n_fft // 2 + 1, D, 2), from that of the response.

    The latter, (D, n_fft // 2 + 1), is divided by the period.
    """
    # Each frequency stands for itself and its conjugate, unless it is its own.
    torch.mul(torch.view_as_real(correlation).transpose(0, 1), 2, out=result)
    own_conjugate = result[_own_conjugates(n_fft)]
    own_conjugate[..., 0].mul_(0.5)
    own_conjugate[..., 1].zero_()
    return result


def _own_conjugates(n_fft: int) -> slice:
    """The frequencies that are their own conjugates, and so real: 0 and, for an even period, n_fft / 2."""
    return slice(None, None, n_fft // 2) if n_fft % 2 == 0 else slice(1)
