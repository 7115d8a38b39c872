"""Into how many ranges an epoch is cut, how much of each is shuffled at a time, and which version of the order makes
samples of them: chosen once, and kept with the run.

All decide the order of a run's samples, so they follow from the batch alone, whatever it is trained on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .sections import EARLIER_ORDER, ORDER, BatchSection, DataSection

# Ranks that share a range each decode all of it; one that holds many has as many shards open.
LARGEST_DEFAULT_PARTITIONS = 1024
# With fewer, a batch comes out of few places of the data.
SMALLEST_DEFAULT_PARTITIONS = 16
# Samples that are shuffled among each other at a time, over all ranges; bounds what the readers of a run hold.
SHUFFLED_SAMPLES = 65536
# At least this many of a range, a row group.
SMALLEST_WINDOW = 256
# The same in earlier versions, which did not note what they chose.
EARLIER_LARGEST_PARTITIONS, EARLIER_SMALLEST_WINDOW = 64, 1024


def default_partitions(batch_samples: int) -> int:
    """The largest divisor of the global batch up to 1,024: each batch meets every range equally often, and so a rank
    its own. Where that is below 16, a number that serves as well: of a small batch the first multiple, of which each
    rank has several; of a large one that from 512 on by which the batch divides with the least rest.
    """
    if batch_samples < SMALLEST_DEFAULT_PARTITIONS:
        return batch_samples * -(-SMALLEST_DEFAULT_PARTITIONS // batch_samples)
    divisor = largest_divisor(batch_samples, LARGEST_DEFAULT_PARTITIONS)
    if divisor >= SMALLEST_DEFAULT_PARTITIONS:
        return divisor
    numbers = range(LARGEST_DEFAULT_PARTITIONS, LARGEST_DEFAULT_PARTITIONS // 2 - 1, -1)
    return min(numbers, key=lambda number: batch_samples % number)


def largest_divisor(number: int, largest: int) -> int:
    """The largest divisor of `number` up to `largest`."""
    return next(divisor for divisor in range(min(number, largest), 0, -1) if number % divisor == 0)


def earlier_partitions(batch_samples: int, largest: int = LARGEST_DEFAULT_PARTITIONS) -> int:
    """What runs of EARLIER_ORDER have: the largest power of two up to `largest` that divides the global batch."""
    return min(batch_samples & -batch_samples, largest)


def default_window(partitions: int, smallest: int = SMALLEST_WINDOW) -> int:
    """Samples of a range that are shuffled among each other at a time."""
    return max(smallest, SHUFFLED_SAMPLES // partitions)


def settled(data: DataSection, batch: BatchSection) -> DataSection:
    """The section with numbers for what is left open."""
    order, partitions = data.order or ORDER, data.partitions
    if partitions == "auto":
        partitions = (earlier_partitions if order == EARLIER_ORDER else default_partitions)(batch.samples)
    return replace(data, order=order, partitions=partitions, window=data.window or default_window(partitions))


def earlier(data: Any, batch: Any) -> Any:
    """`data` of a run of an earlier version, whose config.yaml has no order, or no window either, with those it had.

    What has another form is returned as it is, and told by those who check it.
    """
    if not isinstance(data, Mapping) or "order" in data:
        return data
    if "window" in data:
        return {**data, "order": EARLIER_ORDER}
    samples = batch.get("samples") if isinstance(batch, Mapping) else None
    samples = BatchSection().samples if samples is None else samples
    partitions = data.get("partitions", "auto")
    if partitions == "auto" and type(samples) is int and samples > 0:
        partitions = earlier_partitions(samples, EARLIER_LARGEST_PARTITIONS)
    if type(partitions) is not int or partitions < 1:
        return data
    window = default_window(partitions, EARLIER_SMALLEST_WINDOW)
    return {**data, "partitions": partitions, "window": window, "order": EARLIER_ORDER}
