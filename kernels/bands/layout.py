"""Layout of a periodised transform: its bands in one tensor, and rows that repeat with a period.

A sample of n rows is transformed with the period n' = 2^J ceil(n / 2^J), zeros filling it up. The bands
[cA_J, cD_J, .., cD_1] lie one behind the other in (B N', D), N' from the padded length N: first all samples' cA_J,
(B, N' / 2^J, D), then all their cD_J, and so on. So each band is a tensor without a copy, and the first two, which have
one length, are one of twice as many samples. Of a sample's band j the first n' / 2^j rows are valid.
"""

from collections.abc import Sequence

import torch

from ..common.rows import keep_valid, valid_rows


def period_of(lengths: int | torch.Tensor, levels: int) -> int | torch.Tensor:
    """n' = 2^J ceil(n / 2^J) of one length n, or of a tensor of them."""
    return ((lengths + (1 << levels) - 1) >> levels) << levels


def band_rows(positions: int, levels: int) -> list[int]:
    """Rows of the bands [cA_J, cD_J, .., cD_1] of a sample of N positions."""
    period = period_of(positions, levels)
    return [period >> level for level in (levels, *range(levels, 0, -1))]


def bands_of(bands: torch.Tensor, batch: int, positions: int, levels: int) -> list[torch.Tensor]:
    """The bands [cA_J, cD_J, .., cD_1] in (B N', D), views (B, rows, D) each."""
    counts = band_rows(positions, levels)
    parts = bands.split([batch * count for count in counts])
    return [part.unflatten(0, (batch, count)) for part, count in zip(parts, counts, strict=True)]


def join_bands(bands: Sequence[torch.Tensor]) -> torch.Tensor:
    """(B N', D) from bands (B, rows, D) one behind the other; one alone is not copied."""
    rows = [band.flatten(0, 1) for band in bands]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def band_masks(positions: int, levels: int, lengths: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Valid rows of the bands, (B, rows of the band) bool each; None: all of them."""
    counts = band_rows(positions, levels)
    if lengths is None:
        return [None] * len(counts)
    depths = (levels, *range(levels, 0, -1))
    periods = period_of(lengths, levels)
    return [valid_rows(periods >> depth, count) for depth, count in zip(depths, counts, strict=True)]


def keep_bands(bands: torch.Tensor, positions: int, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Bands (B N', D) with zeros in the rows that are not valid, whatever they held."""
    if lengths is None:
        return bands
    valid = torch.cat([mask.flatten() for mask in band_masks(positions, levels, lengths)])
    return torch.where(valid[:, None], bands, 0)


def keep_rows(rows: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Rows (B, N, D) with zeros at and past each length, whatever they held."""
    return keep_valid(rows, valid_rows(lengths, rows.shape[1]))


def repeat_rows(rows: torch.Tensor, periods: torch.Tensor | None, before: int, after: int) -> torch.Tensor:
    """Rows -before .. N - 1 + after of the periodic continuation of (B, N, D), N > 0: row t mod period.

    Args:
        rows: (B, N, D).
        periods: (B,) int64, the period of each sample, at most N; None: N.
        before, after: rows to add, any number: short sequences repeat several times.

    Returns:
        (B, before + N + after, D).
    """
    batch, positions, features = rows.shape
    index = torch.arange(-before, positions + after, device=rows.device)
    if periods is None:
        return rows.index_select(1, index % positions)
    index = index % periods.clamp(min=1)[:, None] + positions * torch.arange(batch, device=rows.device)[:, None]
    flat = rows.reshape(batch * positions, features).index_select(0, index.flatten())
    return flat.view(batch, before + positions + after, features)


def bands_of_samples(samples: list[list[torch.Tensor]], positions: int, levels: int) -> torch.Tensor:
    """(B N', D) from the bands (rows, D) of each sample, zeros behind them."""
    of_band = zip(zip(*samples, strict=True), band_rows(positions, levels), strict=True)
    return torch.cat([fill(band, count) for bands, count in of_band for band in bands])


def fill(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """(n, D) -> (N, D) with zeros behind."""
    return torch.cat([rows, rows.new_zeros(positions - len(rows), rows.shape[1])])


def check_rows(name: str, rows: torch.Tensor, levels: int) -> None:
    """Raise ValueError unless `rows` are (B, N, D), and there is a level."""
    if rows.dim() != 3:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; allowed: (B, N, D)")
    _check_levels(levels)


def check_bands(bands: torch.Tensor, levels: int, batch: int, length: int) -> None:
    """Raise ValueError unless `bands` are those of `batch` samples of `length` positions, and there is a level."""
    _check_levels(levels)
    if bands.dim() != 2:
        raise ValueError(f"bands has shape {tuple(bands.shape)}; allowed: (B N', D)")
    if batch < 0 or length < 0:
        raise ValueError(f"batch is {batch} and length {length}; allowed: at least 0")
    rows = batch * period_of(length, levels)
    # Not `len`: an exported program would hold for this number of rows alone.
    if bands.shape[0] != rows:
        raise ValueError(
            f"bands has {bands.shape[0]} rows; allowed: {rows}, for B = {batch}, N = {length} at {levels} levels"
        )


def _check_levels(levels: int) -> None:
    if levels < 1:
        raise ValueError(f"levels is {levels}; allowed: at least 1")
