"""Sweeps of real rotations over the rows of a matrix, many rows at a time.

A sweep O = R_0 R_1 ... R_{n-1}, with R_k = [[cos, -sin], [sin, cos]] on rows (k, k + 1), is cut into chunks of c
rotations. A chunk is one orthogonal matrix of c + 1 rows; what its neighbour hands over is one row, the carry. The
carries obey a linear recurrence over the chunks, so that all the rest is matrix products.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

CHUNK = 32


class Blocks(NamedTuple):
    """A sweep's chunks: c rotations each, m chunks, any leading dimensions.

    Args:
        cosine: (..., m, c), of the rotations' angles.
        products: (..., m, c + 1, c + 1), [k, j] = prod_{k <= i < j} -sin_i for k <= j, else 0.
        matrix: (..., m, c + 1, c + 1), orthogonal; rows [t_first, y_1, ..., y_c], columns [x_0, ..., x_{c-1}, t_last].
    """

    cosine: torch.Tensor
    products: torch.Tensor
    matrix: torch.Tensor


def whole_chunks(positions: int) -> tuple[int, int]:
    """Size c of the chunks for this many rows, at least 1, and the number m c + 1 of rows that they need."""
    rotations = max(positions - 1, 1)
    chunks = -(-rotations // CHUNK)
    size = -(-rotations // chunks)
    return size, chunks * size + 1


def make_blocks(angles: torch.Tensor, dtype: torch.dtype) -> Blocks:
    """The chunks of a sweep from the angles (..., m, c) of its rotations, in `dtype`."""
    sine, cosine = angles.sin().to(dtype), angles.cos().to(dtype)
    products = running_products(-sine)
    # t_k = cos_k x_k - sin_k t_{k+1} and y_{k+1} = sin_k x_k + cos_k t_{k+1}, from the last rotation to the first.
    carries = products * functional.pad(cosine, (0, 1), value=1.0)[..., None, :]
    rows = cosine[..., None] * carries[..., 1:, :] + functional.pad(torch.diag_embed(sine), (0, 1))
    return Blocks(cosine, products, torch.cat([carries[..., :1, :], rows], -2))


def running_products(factors: torch.Tensor) -> torch.Tensor:
    """Factors (..., c) -> (..., c + 1, c + 1) with [k, j] = prod_{k <= i < j} factors_i for k <= j, else 0."""
    size = factors.shape[-1]
    above = torch.ones(size + 1, size, dtype=torch.bool, device=factors.device).triu()
    products = torch.where(above, factors[..., None, :], 1.0).cumprod(-1)
    return functional.pad(products, (1, 0), value=1.0).triu()


def sweep(blocks: Blocks, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y = O x for x (..., n + 1, D), n a multiple of c: y, and what each chunk read and wrote, (..., m, c + 1, D)."""
    heads = x[..., :-1, :].unflatten(-2, blocks.cosine.shape[-2:])
    first_row = blocks.matrix[..., :1, :]
    # Chunks hand over from the last to the first; the recurrence runs over their reversed order.
    added = (first_row[..., :-1] @ heads).squeeze(-2)
    carries = recurrence(first_row[..., 0, -1].flip(-1), added.flip(-2), x[..., -1, :]).flip(-2)
    read = torch.cat([heads, carries[..., 1:, None, :]], -2)
    written = blocks.matrix @ read
    return torch.cat([carries[..., :1, :], written[..., 1:, :].flatten(-3, -2)], -2), read, written


def sweep_back(blocks: Blocks, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x = O^T y, the inverse of `sweep`: x, and what `sweep` reads and writes in each chunk to make y of x."""
    tails = y[..., 1:, :].unflatten(-2, blocks.cosine.shape[-2:])
    last_column = blocks.matrix[..., -1]
    added = (last_column[..., None, 1:] @ tails).squeeze(-2)
    carries = recurrence(last_column[..., 0], added, y[..., 0, :])
    written = torch.cat([carries[..., :-1, None, :], tails], -2)
    read = blocks.matrix.mT @ written
    return torch.cat([read[..., :-1, :].flatten(-3, -2), carries[..., -1:, :]], -2), read, written


def recurrence(factors: torch.Tensor, added: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """s_0 = start (..., D) and s_{j+1} = factors_j s_j + added_j, factors (..., m), added (..., m, D): (..., m + 1, D).

    Longer ones are cut into chunks as well, so that memory stays proportional to m.
    """
    length = factors.shape[-1]
    if length <= CHUNK:
        return running_products(factors).mT @ torch.cat([start[..., None, :], added], -2)
    missing = -length % CHUNK
    factors = functional.pad(factors, (0, missing)).unflatten(-1, (-1, CHUNK))
    added = functional.pad(added, (0, 0, 0, missing)).unflatten(-2, (-1, CHUNK))
    products = running_products(factors).mT
    ends = (products[..., -1:, 1:] @ added).squeeze(-2)
    starts = recurrence(products[..., -1, 0], ends, start)
    states = products[..., :-1, :-1] @ torch.cat([starts[..., :-1, None, :], added[..., :-1, :]], -2)
    return torch.cat([states.flatten(-3, -2), starts[..., -1:, :]], -2)[..., : length + 1, :]


def angle_gradient(blocks: Blocks, matrix_gradient: torch.Tensor) -> torch.Tensor:
    """Gradient of the angles, (..., m, c), from that of the chunks' matrices, (..., m, c + 1, c + 1).

    A rotation turns the rows (t_k, y_{k+1}) that it has made into each other, so that the gradient of its angle is
    <gradient of y_{k+1}, t_k> - <gradient of t_k, y_{k+1}>.
    """
    cosine = functional.pad(blocks.cosine, (0, 1), value=1.0)
    carries = blocks.products * cosine[..., None, :]
    first = (matrix_gradient[..., 1:, :] * carries[..., :-1, :]).sum(-1)
    outputs = matrix_gradient @ blocks.matrix[..., 1:, :].mT
    before = blocks.products[..., :-1] * cosine.roll(1, -1)[..., None]
    return first - (before * outputs).sum(-2)
