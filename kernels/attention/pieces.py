"""How the rows of a head are cut into pieces where heads alone keep no card busy, and its channels into blocks."""

from ..common.interpreter import interpreted

# What a program holds of a head: features by channels.
STATE_BYTES = 16384
# Programs of a launch where heads can be cut: four for each multiprocessor of the largest of our cards. And rows of
# such a piece, at least.
PROGRAMS, PIECE = (6, 16) if interpreted() else (528, 128)


def block_of(size: int) -> int:
    """The size of block for a matrix product of this size: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def channels_of(features: int, width: int, element: int) -> int:
    """Channels of a block, of `width`; an element of a feature has so many bytes."""
    return min(block_of(width), block_of(STATE_BYTES // (block_of(features) * element)), 64)


def pieces_of(heads: int, positions: int) -> int:
    """Pieces of each head's rows, where all samples have so many heads by blocks of channels."""
    return min(-(-PROGRAMS // heads), -(-positions // PIECE))
