"""Periodised lifting transforms: what they mean."""

import torch

from ..bands.layout import check_bands, check_rows, period_of
from ..common.arguments import as_lengths
from ..common.rows import of_nothing
from ..selection import select
from .portable import lifting_analysis as portable_analysis
from .portable import lifting_synthesis as portable_synthesis
from .reference import lifting_analysis as reference_analysis
from .reference import lifting_synthesis as reference_synthesis


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Coefficients of each sample's valid rows by lifting steps, of every channel for itself (WavSpA, eqs. 7 to 9).

    One level maps rows x of an even period n to an approximation a and a detail d of q = n / 2 rows each:
    d[k] = x[2 k + 1] - P(x[2 k]), a[k] = x[2 k] + U(d), indices modulo q, and the next level does the same to a. The
    fixed steps are P = (x[2 k] + x[2 (k + 1)]) / 2 and U = (d[k - 1] + d[k]) / 4; learned ones are
    P = silu(sum_l predict[l] x[2 (k + l)]) / 2 and U = silu(sum_l update[l] d[k - l]) / 4. Whatever the steps, they can
    be undone.

    Args:
        x: (B, N, D), any floating dtype.
        predict, update: (T, D) taps of learned steps; both None: the fixed ones.
        levels: J, at least 1.
        lengths: (B,) integers, valid rows n_b of each sample, clamped to 0 .. N; rows at or past it are ignored,
            whatever they hold, and count as zeros up to the period n'_b = 2^J ceil(n_b / 2^J). None: N.

    Returns:
        (B N', D) in the dtype of x, laid out as by `wavelet_analysis`. Computed in fp32, or in float64 for such input.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none.
    """
    check_rows("x", x, levels)
    lengths = as_lengths(lengths, *x.shape[:2], x.device)
    _check_steps(predict, update, x.shape[2])
    run = select("lifting_analysis", x.device, {"portable": portable_analysis, "reference": reference_analysis})
    if x.numel() == 0:
        rows = x.shape[0] * period_of(x.shape[1], levels)
        return of_nothing(x.new_zeros(rows, x.shape[2]), x, predict, update)
    return run(x, predict, update, levels, lengths)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The inverse of `lifting_analysis`: the same steps, undone in the opposite order.

    Args:
        bands: (B N', D), as from `lifting_analysis`; rows that are not valid are ignored, whatever they hold.
        predict, update: (T, D) taps of learned steps; both None: the fixed ones.
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
    _check_steps(predict, update, bands.shape[1])
    run = select("lifting_synthesis", bands.device, {"portable": portable_synthesis, "reference": reference_synthesis})
    if bands.numel() == 0:
        return of_nothing(bands.new_zeros(batch, length, bands.shape[1]), bands, predict, update)
    return run(bands, predict, update, levels, batch, length, lengths)


def _check_steps(predict: torch.Tensor | None, update: torch.Tensor | None, features: int) -> None:
    if (predict is None) != (update is None):
        raise ValueError("only one of predict and update is given; allowed: both, or none")
    for name, taps in (("predict", predict), ("update", update)):
        if taps is not None and (taps.dim() != 2 or len(taps) == 0 or taps.shape[1] != features):
            raise ValueError(f"{name} has shape {tuple(taps.shape)}; allowed: (T, {features})")
