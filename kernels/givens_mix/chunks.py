"""How the rotations of one order are cut into chunks on a GPU: sizes that Triton and torch's tracing share."""

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


def chunks_of(positions: int) -> int:
    """How many chunks there are."""
    return -(-positions // CHUNK)


def rows_of_tables(positions: int) -> int:
    """Rows of a table: those of all chunks, and of one more, for the phase behind the last row."""
    return (chunks_of(positions) + 1) * CHUNK
