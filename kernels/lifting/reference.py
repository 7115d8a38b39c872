"""Periodised lifting of one sample after the other in float64, by its equations."""

import torch

from ..bands.layout import band_rows, bands_of, bands_of_samples, fill, period_of


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    batch, positions, _ = x.shape
    found = []
    for sample, valid in enumerate([positions] * batch if lengths is None else lengths.tolist()):
        rows = fill(x[sample, :valid].double(), period_of(valid, levels))
        details = []
        for _ in range(levels):
            even, odd = rows[::2], rows[1::2]
            detail = odd - prediction(even, predict)
            rows = even + correction(detail, update)
            details.append(detail)
        found.append([rows, *reversed(details)])
    return bands_of_samples(found, positions, levels).to(x.dtype)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    result = []
    padded = bands_of(bands.double(), batch, length, levels)
    for sample, valid in enumerate([length] * batch if lengths is None else lengths.tolist()):
        counts = band_rows(valid, levels)
        rows, *details = (band[sample, :count] for band, count in zip(padded, counts, strict=True))
        for detail in details:
            even = rows - correction(detail, update)
            odd = detail + prediction(even, predict)
            rows = torch.stack([even, odd], dim=1).flatten(0, 1)
        result.append(fill(rows[:valid], length))
    return torch.stack(result).to(bands.dtype)


def prediction(even: torch.Tensor, predict: torch.Tensor | None) -> torch.Tensor:
    """Eq. 8, or silu of a sum over the even rows k, k + 1, ..: (q, D) -> (q, D)."""
    if predict is None:
        return (even + even.roll(-1, 0)) / 2
    total = sum(taps.double() * even.roll(-tap, 0) for tap, taps in enumerate(predict))
    return total * torch.sigmoid(total) / 2


def correction(detail: torch.Tensor, update: torch.Tensor | None) -> torch.Tensor:
    """Eq. 9 with its missing plus sign, or silu of a sum over the details k, k - 1, ..: (q, D) -> (q, D)."""
    if update is None:
        return (detail.roll(1, 0) + detail) / 4
    total = sum(taps.double() * detail.roll(tap, 0) for tap, taps in enumerate(update))
    return total * torch.sigmoid(total) / 4
