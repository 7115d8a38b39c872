"""Sweeps of real rotations over the rows of a matrix, many rows at a time.

A sweep O = R_0 R_1 ... R_{n-1}, with R_k = [[cos, -sin], [sin, cos]] on rows (k, k + 1), is cut into chunks of c
rotations. A chunk is one orthogonal matrix of c + 1 rows; what its neighbour hands over is one row, the carry. The
carries obey a linear recurrence over the chunks, so that all the rest is matrix products. O takes rows k to rows
k + 1, and its inverse takes them back, so that a chunk's rows lie next to each other before and after: they are not
copied. The last rotation is by zero; behind it is a row of zeros.

Rows lie as tiles (..., m, c + 1, D): c rows of a chunk and one place for a carry. What O reads are the columns of the
chunks' matrices, [x_0, ..., x_{c-1}, t_last]; what it writes are their rows, [t_first, y_1, ..., y_c].
"""

from typing import NamedTuple

import torch
from torch.nn import functional

CHUNK = 32
# Elsewhere than on a CPU memory counts: the matrices of longer chunks take as much of it as narrow heads do.
CHUNK_IN_MEMORY = 16


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


class Swept(NamedTuple):
    """What a sweep gives, or its inverse.

    Args:
        tiles: (..., m, c + 1, D), of `sweep` the rows of the chunks' matrices, of `sweep_back` their columns.
        first: (..., D), y_0.
        carries: (..., m, D), what goes into each chunk at the place of a carry: t_last, or t_first.
    """

    tiles: torch.Tensor
    first: torch.Tensor
    carries: torch.Tensor


def whole_chunks(positions: int, device: torch.device) -> tuple[int, int]:
    """Size c of the chunks for this many rows, and the number m c of rows that they have."""
    chunks = -(-positions // (CHUNK if device.type == "cpu" else CHUNK_IN_MEMORY))
    size = -(-positions // chunks)
    return size, chunks * size


def make_blocks(angles: torch.Tensor, dtype: torch.dtype) -> Blocks:
    """The chunks of a sweep from the angles (..., m, c) of its rotations, in `dtype`."""
    sine, cosine = angles.sin().to(dtype), angles.cos().to(dtype)
    products = running_products(-sine)
    # t_k = cos_k x_k - sin_k t_{k+1} and y_{k+1} = sin_k x_k + cos_k t_{k+1}, from the last rotation to the first.
    carries = products * functional.pad(cosine, (0, 1), value=1.0)[..., None, :]
    matrix = torch.cat([carries[..., :1, :], cosine[..., None] * carries[..., 1:, :]], -2)
    matrix.diagonal(-1, -2, -1).add_(sine)
    return Blocks(cosine, products, matrix)


def running_products(factors: torch.Tensor) -> torch.Tensor:
    """Factors (..., c) -> (..., c + 1, c + 1) with [k, j] = prod_{k <= i < j} factors_i for k <= j, else 0."""
    size = factors.shape[-1]
    above = torch.ones(size + 1, size, dtype=torch.bool, device=factors.device).triu()
    products = torch.where(above, factors[..., None, :], 1.0).cumprod(-1)
    return functional.pad(products, (1, 0), value=1.0).triu()


def sweep(blocks: Blocks, tiles: torch.Tensor) -> Swept:
    """y = O x for columns (..., m, c + 1, D) without their carries; a row of zeros stands behind the last of them."""
    made = blocks.matrix[..., :-1] @ tiles[..., :-1, :]
    # Chunks hand over from the last to the first; the recurrence runs over their reversed order.
    nothing = torch.zeros_like(made[..., 0, 0, :])
    states = recurrence(blocks.matrix[..., 0, -1].flip(-1), made[..., 0, :].flip(-2), nothing).flip(-2)
    carries = states[..., 1:, :]
    made.addcmul_(blocks.matrix[..., -1:], carries[..., None, :])
    return Swept(made, states[..., 0, :], carries)


def sweep_back(blocks: Blocks, tiles: torch.Tensor, first: torch.Tensor) -> Swept:
    """x = O^T y, the inverse of `sweep`, for rows (..., m, c + 1, D) without their carries, and y_0, `first`."""
    made = blocks.matrix[..., 1:, :].mT @ tiles[..., 1:, :]
    carries = recurrence(blocks.matrix[..., 0, -1], made[..., -1, :], first)[..., :-1, :]
    made.addcmul_(blocks.matrix[..., :1, :].mT, carries[..., None, :])
    return Swept(made, first, carries)


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
