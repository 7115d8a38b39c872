"""Periodised wavelet transforms of one sample after the other in float64, by their sums."""

import torch

from ..bands.layout import band_rows, bands_of, bands_of_samples, fill, period_of


def wavelet_analysis(x: torch.Tensor, filters: torch.Tensor, levels: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_analysis`."""
    batch, positions, _ = x.shape
    low = filters.double().reshape(len(filters), -1)
    found = []
    for sample, valid in enumerate([positions] * batch if lengths is None else lengths.tolist()):
        rows = fill(x[sample, :valid].double(), period_of(valid, levels))
        details = []
        for _ in range(levels):
            rows, detail = split(rows, low)
            details.append(detail)
        found.append([rows, *reversed(details)])
    return bands_of_samples(found, positions, levels).to(x.dtype)


def wavelet_synthesis(
    bands: torch.Tensor, filters: torch.Tensor, levels: int, batch: int, length: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """See `longmix.kernels.ops.wavelet_synthesis`."""
    low = filters.double().reshape(len(filters), -1)
    result = []
    padded = bands_of(bands.double(), batch, length, levels)
    for sample, valid in enumerate([length] * batch if lengths is None else lengths.tolist()):
        counts = band_rows(valid, levels)
        rows, *details = (band[sample, :count] for band, count in zip(padded, counts, strict=True))
        for detail in details:
            rows = merge(rows, detail, low)
        result.append(fill(rows[:valid], length))
    return torch.stack(result).to(bands.dtype)


def split(rows: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """lo[t] = sum_l h[l] x[(2 t + l) mod n], hi[t] = sum_l (-1)^l h[T - 1 - l] x[(2 t + l) mod n]; (n / 2, D) each."""
    even = torch.arange(0, len(rows), 2, device=rows.device)
    approximation = detail = torch.zeros_like(rows[::2])
    for tap in range(len(low)):
        shifted = rows[(even + tap) % max(len(rows), 1)]
        approximation = approximation + low[tap] * shifted
        detail = detail + (-1) ** tap * low[len(low) - 1 - tap] * shifted
    return approximation, detail


def merge(approximation: torch.Tensor, detail: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """y[(2 t + l) mod n] += lo[t] h[l] + hi[t] (-1)^l h[T - 1 - l], over all t and l: (n / 2, D) twice -> (n, D)."""
    rows = torch.cat([torch.zeros_like(detail), torch.zeros_like(detail)])
    even = torch.arange(0, len(rows), 2, device=rows.device)
    for tap in range(len(low)):
        share = low[tap] * approximation + (-1) ** tap * low[len(low) - 1 - tap] * detail
        rows = rows.index_add(0, (even + tap) % max(len(rows), 1), share)
    return rows
