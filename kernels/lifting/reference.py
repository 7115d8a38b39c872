"""Periodised lifting of one sample after the other in float64, by its equations."""

import torch

from ..bands.layout import fill, pack, period_of, unpack


def lifting_analysis(
    x: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_analysis`."""
    batch, positions, _ = x.shape
    packed = []
    for sample, valid in enumerate([positions] * batch if lengths is None else lengths.tolist()):
        rows = fill(x[sample, :valid].double(), period_of(valid, levels))
        details = []
        for _ in range(levels):
            even, odd = rows[::2], rows[1::2]
            detail = odd - prediction(even, predict)
            rows = even + correction(detail, update)
            details.append(detail)
        packed.append(pack([rows, *reversed(details)], positions, levels))
    return torch.stack(packed).to(x.dtype)


def lifting_synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor | None,
    update: torch.Tensor | None,
    levels: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.lifting_synthesis`."""
    result = []
    for sample, valid in enumerate([length] * len(bands) if lengths is None else lengths.tolist()):
        rows, *details = unpack(bands[sample].double(), length, levels, valid)
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
