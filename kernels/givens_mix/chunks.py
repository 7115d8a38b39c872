"""How the rotations of one order are cut into chunks on a GPU: sizes that Triton and torch's tracing share."""

import torch

from ..common.interpreter import interpreted

# Rows of a chunk. Longer ones do not fit into the registers of a program's threads, as benchmarks/gpu_model shows.
CHUNK = 16
# cos and sin of the rotations of H_u, of those of H_l, of the phases before H_u, between H_u and H_l, and between Phi
# and its inverse, those of the eigenvalues.
TABLES = 10
# What the sums of the backward pass belong to: the five angles of TABLES.
ANGLES = 5
# Rows that are handed into a chunk: in the two sweeps of Phi from behind and from before, and in those of its inverse.
INFLOWS = 4
# Of each chunk, what it makes of the rows that are handed in where these are one: see `programs_gpu.find_terms`.
COUPLINGS = 12
# Chunks and channels that a program of the scan over chunks takes at once: the first with all chunks, or the last.
SCANS = ((2, 4), (4, 4)) if interpreted() else ((64, 8), (128, 8), (256, 4))


def chunks_of(positions: int) -> int:
    """How many chunks there are."""
    return -(-positions // CHUNK)


def scan_of(positions: int) -> tuple[int, int]:
    """Of SCANS that of so many rows."""
    return next((scan for scan in SCANS if chunks_of(positions) <= scan[0]), SCANS[-1])


def rows_of_tables(positions: int) -> int:
    """Rows of a table: those of all chunks, and of one more, for the phase behind the last row."""
    return (chunks_of(positions) + 1) * CHUNK


def kept_of(value: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Empty, for a value of as many heads, (B, N, H, d, 2) or (B, N, 2, H, d): tables (B, H, tables, rows), inflows
    (B, H, inflows, chunks, d, 2), couplings (B, H, couplings, chunks), all fp32.
    """
    batch, positions = value.shape[:2]
    count, width = chunks_of(positions), value[0, 0].numel() // (2 * heads)
    return (
        value.new_empty(batch, heads, TABLES, rows_of_tables(positions), dtype=torch.float32),
        value.new_empty(batch, heads, INFLOWS, count, width, 2, dtype=torch.float32),
        value.new_empty(batch, heads, COUPLINGS, count, dtype=torch.float32),
    )


def in_planes(value: torch.Tensor) -> bool:
    """Whether a value (B, N, H, d, 2) lies as (B, N, 2, H, d): a linear layer that makes all real parts and then all
    imaginary parts leaves the pairs apart, and no copy is made for that.
    """
    return not value.is_contiguous() and value.permute(0, 1, 4, 2, 3).is_contiguous()
