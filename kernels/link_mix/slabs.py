"""How many channels of a sample a program of the Triton kernels takes: a slab, which a cache can hold.

They are groups of as many as a thread reads at once.
"""

# Bytes of a slab, so that a cache has room for those of several programs, and its least and most channels.
SLAB, LEAST, MOST = 1 << 16, 8, 16
# Rows of a program's block, at least and at most.
FEWEST, MOST_ROWS = 128, 1024
# Bytes that a thread reads at once.
READ = 16
# Rows of a document of usual packed texts; one of twice as many still has a slab that a cache can hold.
USUAL_DOCUMENT = 1024


def channels_of(positions: int, element: int, documents: bool) -> int:
    """Channels of a slab, a power of 2.

    Args:
        positions: N.
        element: bytes of a value.
        documents: samples have several, which are shorter than they.
    """
    rows = min(positions, USUAL_DOCUMENT) if documents else positions
    fitting = min(MOST, SLAB // (rows * element))
    return 1 << max(LEAST, fitting).bit_length() - 1


def groups_of(channels: int, element: int) -> tuple[int, int]:
    """Groups of a slab's channels, and channels of each."""
    wide = READ // element
    return channels // wide, wide


def rows_of(positions: int) -> int:
    """Rows of a program's block, a power of 2; no more than a short sample fills: threads without a row idle."""
    return min(max(FEWEST, 1 << (positions - 1).bit_length()), MOST_ROWS)


def fewest_positions(channels: int, element: int, rows: int) -> int:
    """A multiple of 16: samples have such slabs and blocks of rows from there, until they are about twice as long."""
    shortest = 0 if rows == FEWEST else rows // 2
    return shortest if channels == MOST else SLAB // (2 * channels * element) + 16
