"""What the work of Triton kernels is counted in."""

from collections.abc import Callable, Mapping

EXPONENTIAL = 8  # operations that an exponential counts as
INTEGER = 8  # bytes of an index
# Of a launch, by their names: tensors and numbers, constants too.
Arguments = Mapping[str, object]
# (arguments, programs in each direction, lengths of all documents or None) -> (bytes, operations)
Work = Callable[[Arguments, tuple[int, ...], list[int] | None], tuple[int, int]]


def rounded(count: int, block: int) -> int:
    return -(-count // block) * block
