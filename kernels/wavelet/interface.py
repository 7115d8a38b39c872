"""Periodised discrete wavelet transforms: what they mean."""

import torch

from ..bands.layout import check_bands, check_rows, period_of
from ..common.arguments import as_lengths
from ..common.rows import of_nothing
from ..selection import select
from .portable import wavelet_analysis as portable_analysis
from .portable import wavelet_synthesis as portable_synthesis
from .reference import wavelet_analysis as reference_analysis
from .reference import wavelet_synthesis as reference_synthesis


def wavelet_analysis(
    x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """Periodised wavelet coefficients of each sample's valid rows, of every channel for itself.

    One level maps rows x of an even period n to an approximation lo and a detail hi of n / 2 rows each:
    lo[t] = sum_l h[l] x[(2 t + l) mod n], hi[t] = sum_l (-1)^l h[T - 1 - l] x[(2 t + l) mod n]; the next level does the
    same to lo. The period is n'_b = 2^J ceil(n_b / 2^J); x is zero from row n_b on. Taps may outnumber rows. Where h is
    orthonormal to its shifts by 2, the transform is orthogonal.

    Args:
        x: (B, N, D), any floating dtype.
        filters: low-pass taps h, (T, D), or (T,) for the same in all channels; T even.
        levels: J, at least 1.
        lengths: (B,) integers, valid rows n_b of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold. None: N.

    Returns:
        (B N', D) in the dtype of x, N' = 2^J ceil(N / 2^J): the bands [cA_J, cD_J, .., cD_1] one behind the other, of
        all samples each: (B, N' / 2^j, D), of which sample b's first n'_b / 2^j rows are valid and the others zero.
        `longmix.kernels.bands.layout.bands_of` takes them apart. Computed in fp32, or in float64 for such input.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    check_rows("x", x, levels)
    lengths = as_lengths(lengths, *x.shape[:2], x.device)
    _check_filters(filters, x.shape[2])
    run = select("wavelet_analysis", x.device, {"portable": portable_analysis, "reference": reference_analysis})
    if x.numel() == 0:
        rows = x.shape[0] * period_of(x.shape[1], levels)
        return of_nothing(x.new_zeros(rows, x.shape[2]), x, filters)
    return run(x, filters, levels, lengths)


def wavelet_synthesis(
    bands: torch.Tensor,
    filters: torch.Tensor,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The adjoint of `wavelet_analysis`; its inverse where that is orthogonal.

    One level: y[(2 t + l) mod n] = sum over t and l of lo[t] h[l] + hi[t] (-1)^l h[T - 1 - l].

    Args:
        bands: (B N', D), as from `wavelet_analysis`; rows that are not valid are ignored, whatever they hold.
        filters: low-pass taps h, (T, D) or (T,); T even.
        levels: J, at least 1.
        batch: B, samples.
        length: N, positions of the result; N' = 2^J ceil(N / 2^J).
        lengths: (B,) integers, valid rows n_b of each sample, clamped to 0 .. N. None: N.

    Returns:
        (B, N, D) in the dtype of bands, zero at and past each length. Computed in fp32, or in float64 for such input.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    check_bands(bands, levels, batch, length)
    lengths = as_lengths(lengths, batch, length, bands.device)
    _check_filters(filters, bands.shape[1])
    run = select("wavelet_synthesis", bands.device, {"portable": portable_synthesis, "reference": reference_synthesis})
    if bands.numel() == 0:
        return of_nothing(bands.new_zeros(batch, length, bands.shape[1]), bands, filters)
    return run(bands, filters, levels, batch, length, lengths)


def _check_filters(filters: torch.Tensor, features: int) -> None:
    if filters.shape[1:] not in ((), (features,)) or filters.dim() == 0 or len(filters) % 2 or len(filters) == 0:
        raise ValueError(
            f"filters has shape {tuple(filters.shape)}; allowed: (T,) or (T, {features}) with an even number T of taps"
        )
