"""Learned lifting steps as products of matrices: the sums of a block of rows are one small matrix for each channel.

Channels come first here, (D, B, N), so that each is a batch of products. A sum over the taps is a sum over as many taps
when it is differentiated, so nothing is scattered.
"""

import torch
from torch.nn import functional

from ..bands.layout import bands_of, join_bands, keep_bands, keep_rows, period_of

# Rows of a block: its matrix has as many columns, and a row more for each tap but one.
BLOCK = 32
# Of what a step adds.
PREDICTED, CORRECTED = 0.5, 0.25


def analysis(
    x: torch.Tensor, predict: torch.Tensor, update: torch.Tensor, levels: int, lengths: torch.Tensor | None
) -> torch.Tensor:
    """`longmix.kernels.ops.lifting_analysis` with taps."""
    positions, working = x.shape[1], torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        predict, update = predict.to(working), update.to(working)
        rows = _Turned.apply(keep_rows(x, lengths), (2, 0, 1), working)
        rows = _filled(rows, period_of(positions, levels))
        details = []
        for periods in _periods(levels, lengths):
            even, odd = _Halves.apply(rows)
            detail = torch.sub(odd, functional.silu(_Sum.apply(even, predict, False, periods)), alpha=PREDICTED)
            rows = torch.add(even, functional.silu(_Sum.apply(detail, update, True, periods)), alpha=CORRECTED)
            details.append(detail)
        bands = join_bands([_Turned.apply(band, (1, 2, 0), x.dtype) for band in (rows, *reversed(details))])
        return keep_bands(bands, positions, levels, lengths)


def synthesis(
    bands: torch.Tensor,
    predict: torch.Tensor,
    update: torch.Tensor,
    levels: int,
    batch: int,
    length: int,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """`longmix.kernels.ops.lifting_synthesis` with taps."""
    working = torch.promote_types(bands.dtype, torch.float32)
    with torch.autocast(bands.device.type, enabled=False):
        predict, update = predict.to(working), update.to(working)
        kept = bands_of(keep_bands(bands, length, levels, lengths), batch, length, levels)
        rows, *details = (_Turned.apply(band, (2, 0, 1), working) for band in kept)
        for detail, periods in zip(details, reversed(_periods(levels, lengths)), strict=True):
            even = torch.sub(rows, functional.silu(_Sum.apply(detail, update, True, periods)), alpha=CORRECTED)
            odd = torch.add(detail, functional.silu(_Sum.apply(even, predict, False, periods)), alpha=PREDICTED)
            rows = _Whole.apply(even, odd)
        return keep_rows(_Turned.apply(rows[:, :, :length], (1, 2, 0), bands.dtype), lengths)


def _periods(levels: int, lengths: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Of the bands of each level, from the first on."""
    return [None if lengths is None else period_of(lengths, levels) >> level for level in range(1, levels + 1)]


def _filled(rows: torch.Tensor, count: int) -> torch.Tensor:
    """(D, B, n) -> (D, B, count) with zeros behind."""
    missing = count - rows.shape[2]
    # A program that is traced takes other lengths, too, of which some lack rows.
    return functional.pad(rows, (0, missing)) if torch.compiler.is_compiling() or missing else rows


# Layouts, each one copy forward and backward.


class _Turned(torch.autograd.Function):
    """A contiguous tensor with its axes in another order, in another dtype."""

    @staticmethod
    def forward(ctx, tensor, axes, dtype):
        ctx.axes, ctx.dtype = tuple(axes.index(axis) for axis in range(len(axes))), tensor.dtype
        turned = tensor.permute(axes)
        return torch.empty(turned.shape, dtype=dtype, device=tensor.device).copy_(turned)

    @staticmethod
    def backward(ctx, gradient):
        return _Turned.apply(gradient, ctx.axes, ctx.dtype), None, None


class _Halves(torch.autograd.Function):
    """Even and odd rows (D, B, q) of (D, B, 2 q)."""

    @staticmethod
    def forward(ctx, rows):
        return rows[:, :, ::2], rows[:, :, 1::2]

    @staticmethod
    def backward(ctx, of_even, of_odd):
        return _Whole.apply(of_even, of_odd)


class _Whole(torch.autograd.Function):
    """Rows (D, B, 2 q) of even and odd ones."""

    @staticmethod
    def forward(ctx, even, odd):
        rows = even.new_empty(*even.shape[:2], 2 * even.shape[2])
        rows[:, :, ::2], rows[:, :, 1::2] = even, odd
        return rows

    @staticmethod
    def backward(ctx, gradient):
        return _Halves.apply(gradient)


# Sums over taps and the gradient of taps. Rows past a sample's period are not read, and mean nothing in results.


class _Sum(torch.autograd.Function):
    """sum over l of taps[l] rows[k + l], or rows[k - l] `backwards`, indices modulo the period: (D, B, q)."""

    @staticmethod
    def forward(ctx, rows, taps, backwards, periods):
        ctx.save_for_backward(rows, taps, periods)
        ctx.backwards = backwards
        sums = torch.bmm(_windows(rows, len(taps), backwards, periods), _matrices(taps, backwards))
        return sums.view(*rows.shape[:2], -1)[:, :, : rows.shape[2]]

    @staticmethod
    def backward(ctx, gradient):
        rows, taps, periods = ctx.saved_tensors
        return (
            _Sum.apply(gradient, taps, not ctx.backwards, periods) if ctx.needs_input_grad[0] else None,
            _Taps.apply(gradient, rows, len(taps), ctx.backwards, periods) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class _Taps(torch.autograd.Function):
    """The derivative of <signal, _Sum(rows, taps)> by the taps, (T, D)."""

    @staticmethod
    def forward(ctx, signal, rows, count, backwards, periods):
        ctx.save_for_backward(signal, rows, periods)
        ctx.backwards = backwards
        if periods is not None:
            signal = signal.where(torch.arange(signal.shape[2], device=signal.device) < periods[:, None], 0)
        blocks = _filled(signal, -(-signal.shape[2] // BLOCK) * BLOCK).reshape(len(signal), -1, BLOCK)
        products = torch.bmm(_windows(rows, count, backwards, periods).transpose(1, 2), blocks)
        # Those of row i of a block with the row that a tap is multiplied with, in line i of the tap.
        near = products.as_strided((len(signal), count, BLOCK), (products.stride(0), BLOCK, BLOCK + 1))
        of_taps = near.sum(2).t()
        return of_taps.flip(0) if backwards else of_taps.contiguous()

    @staticmethod
    def backward(ctx, gradient):
        signal, rows, periods = ctx.saved_tensors
        return (
            _Sum.apply(rows, gradient, ctx.backwards, periods),
            _Sum.apply(signal, gradient, not ctx.backwards, periods),
            None,
            None,
            None,
        )


def _windows(rows: torch.Tensor, taps: int, backwards: bool, periods: torch.Tensor | None) -> torch.Tensor:
    """The rows that each block's sums are made of, (D, B * blocks, BLOCK + T - 1), of (D, B, q)."""
    width, batch, count = rows.shape
    reach = taps - 1
    first, blocks = -reach if backwards else 0, -(-count // BLOCK)
    near = torch.arange(first, first + blocks * BLOCK + reach, device=rows.device).unfold(0, BLOCK + reach, BLOCK)
    near = near % count if periods is None else near % periods.clamp(min=1)[:, None, None]
    index = near + torch.arange(0, batch * count, count, device=rows.device)[:, None, None]
    return rows.flatten(1).index_select(1, index.flatten()).view(width, batch * blocks, BLOCK + reach)


def _matrices(taps: torch.Tensor, backwards: bool) -> torch.Tensor:
    """What a block's rows are multiplied with, (D, BLOCK + T - 1, BLOCK): tap l in places (i + l, i)."""
    weights = functional.pad((taps.flip(0) if backwards else taps).t(), (BLOCK - 1, BLOCK - 1))
    return weights.unfold(1, BLOCK, 1).flip(2)
