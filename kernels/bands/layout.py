"""Layout of a periodised transform: its bands in their packed form, and rows that repeat with a period.

A sample of n rows is transformed with the period n' = 2^J ceil(n / 2^J), zeros filling it up. The bands
[cA_J, cD_J, .., cD_1] are packed one behind the other as (B, N', D), N' from the padded length N, at offsets that are
equal for all samples; of band j the first n' / 2^j rows are valid.
"""

import torch

from ..common.rows import keep_valid, valid_rows


def period_of(lengths: int | torch.Tensor, levels: int) -> int | torch.Tensor:
    """n' = 2^J ceil(n / 2^J) of one length n, or of a tensor of them."""
    return ((lengths + (1 << levels) - 1) >> levels) << levels


def band_slices(positions: int, levels: int) -> list[slice]:
    """Rows of the bands [cA_J, cD_J, .., cD_1] in the packed form of N positions."""
    period = period_of(positions, levels)
    details = [slice(period >> level, 2 * period >> level) for level in range(levels, 0, -1)]
    return [slice(0, period >> levels), *details]


def band_masks(positions: int, levels: int, lengths: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Valid rows of the bands, (B, rows of the band) bool each; None: all of them."""
    slices = band_slices(positions, levels)
    if lengths is None:
        return [None] * len(slices)
    periods = period_of(lengths, levels)
    depths = [levels, *range(levels, 0, -1)]
    return [valid_rows(periods >> depth, rows.stop - rows.start) for rows, depth in zip(slices, depths, strict=True)]


def keep_bands(packed: torch.Tensor, positions: int, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Packed bands (B, N', D) with zeros in the rows that are not valid, whatever they held."""
    if lengths is None:
        return packed
    return keep_valid(packed, torch.cat(band_masks(positions, levels, lengths), dim=1))


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


def pack(bands: list[torch.Tensor], positions: int, levels: int) -> torch.Tensor:
    """The bands of one sample in the packed form of N positions, (N', D), zeros behind each."""
    slices = band_slices(positions, levels)
    return torch.cat([fill(band, rows.stop - rows.start) for band, rows in zip(bands, slices, strict=True)])


def unpack(packed: torch.Tensor, positions: int, levels: int, valid: int) -> list[torch.Tensor]:
    """The bands of one sample of n rows out of the packed form of N positions."""
    starts = [rows.start for rows in band_slices(positions, levels)]
    sizes = [rows.stop - rows.start for rows in band_slices(valid, levels)]
    return [packed[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def fill(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """(n, D) -> (N, D) with zeros behind."""
    return torch.cat([rows, rows.new_zeros(positions - len(rows), rows.shape[1])])


def check_rows(name: str, rows: torch.Tensor, levels: int) -> None:
    """Raise ValueError unless `rows` are (B, N, D), and there is a level."""
    if rows.dim() != 3:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; allowed: (B, N, D)")
    if levels < 1:
        raise ValueError(f"levels is {levels}; allowed: at least 1")


def check_bands(bands: torch.Tensor, levels: int, length: int) -> None:
    """Raise ValueError unless `bands` are the packed bands of `length` positions."""
    check_rows("bands", bands, levels)
    if bands.shape[1] != period_of(length, levels):
        raise ValueError(
            f"bands has {bands.shape[1]} rows; allowed: {period_of(length, levels)}, for {length} positions at "
            f"{levels} levels"
        )
