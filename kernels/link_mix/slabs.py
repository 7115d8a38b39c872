"""How many channels of a sample a program of the Triton kernels takes: a slab, which a cache can hold."""

# Bytes of a slab, so that a cache has room for two, and its least and most channels.
SLAB, LEAST, MOST = 1 << 16, 8, 64
# Rows of a document in which all but few tokens of packed texts are.
USUAL_DOCUMENT = 2048


def channels_of(positions: int, width: int, element: int, documents: bool) -> int:
    """Channels of a slab, a power of 2.

    Args:
        positions: N.
        width: D.
        element: bytes of a value.
        documents: samples have several, which are shorter than they.
    """
    rows = min(positions, USUAL_DOCUMENT) if documents else positions
    fitting = min(MOST, SLAB // (rows * element), 1 << (width - 1).bit_length())
    return 1 << max(LEAST, fitting).bit_length() - 1


def fewest_positions(channels: int, element: int) -> int:
    """A number of positions, a multiple of 16, beyond which slabs have no more than so many channels.

    At twice as many they would have fewer.
    """
    return 0 if channels >= MOST else SLAB // (2 * channels * element) + 16
