"""Into how many ranges an epoch is cut, and how much of each is shuffled at a time: chosen once, and kept with the run.

Both decide the order of a run's samples, so they follow from the batch alone, whatever it is trained on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .sections import BatchSection, DataSection

# Ranks that share a range each decode all of it; one that holds many has as many shards open.
LARGEST_DEFAULT_PARTITIONS = 1024
# Samples that are shuffled among each other at a time, over all ranges; bounds what the readers of a run hold.
SHUFFLED_SAMPLES = 65536
# At least this many of a range, a row group.
SMALLEST_WINDOW = 256
# The same in earlier versions, which did not note what they chose.
EARLIER_LARGEST_PARTITIONS, EARLIER_SMALLEST_WINDOW = 64, 1024


def default_partitions(batch_samples: int, largest: int = LARGEST_DEFAULT_PARTITIONS) -> int:
    """The largest power of two up to `largest` that divides the global batch."""
    return min(batch_samples & -batch_samples, largest)


def default_window(partitions: int, smallest: int = SMALLEST_WINDOW) -> int:
    """Samples of a range that are shuffled among each other at a time."""
    return max(smallest, SHUFFLED_SAMPLES // partitions)


def settled(data: DataSection, batch: BatchSection) -> DataSection:
    """The section with numbers for what is left open."""
    partitions = default_partitions(batch.samples) if data.partitions == "auto" else data.partitions
    return replace(data, partitions=partitions, window=data.window or default_window(partitions))


def earlier(data: Any, batch: Any) -> Any:
    """`data` of a run of an earlier version, whose config.yaml has no window, with the numbers that it chose.

    What has another form is returned as it is, and told by those who check it.
    """
    if not isinstance(data, Mapping) or "window" in data:
        return data
    samples = batch.get("samples") if isinstance(batch, Mapping) else None
    samples = BatchSection().samples if samples is None else samples
    partitions = data.get("partitions", "auto")
    if partitions == "auto" and type(samples) is int and samples > 0:
        partitions = default_partitions(samples, EARLIER_LARGEST_PARTITIONS)
    if type(partitions) is not int or partitions < 1:
        return data
    return {**data, "partitions": partitions, "window": default_window(partitions, EARLIER_SMALLEST_WINDOW)}
