"""CPU seconds to feed a million tokens: reading, order, masks and collation of one rank's batches.

`python benchmarks/feeding.py [FOLDER]` prepares batches of 256 samples for masked language modelling as
`longmix train` does it behind the steps, from a prepared data set, or else from rows of 512 tokens that it makes, in
micro-batches of 8 and of 32. The first steps, which open files, do not count; the median of the rounds does.

    python benchmarks/feeding.py --ranks 512 --batch 4096 [--partitions 64]

measures what the first of 512 ranks prepares of batches of 4,096 samples.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from samples.seek import BATCH, LENGTH, write

from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.stream import DRAWN_STEPS, BatchStream
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.configuration import ObjectiveSection
from longmix.trainer.settings.shuffling import default_partitions, default_window


def seconds_per_million(
    folder: str, micro_batch: int, steps: int, batch: int = BATCH, ranks: int = 1, partitions: int | None = None
) -> float:
    """CPU seconds of this process, the first of `ranks`, for a million tokens. Partitions None: as longmix chooses."""
    dataset = ShardedDataset(folder)
    partitions = partitions or default_partitions(batch)
    order = RunOrder([len(dataset)], [1.0], partitions, default_window(partitions), seed=0)
    objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
    with BatchStream([dataset], order, objective, batch, micro_batch, 0, ranks, 0, 0, 0) as stream:
        for step in range(DRAWN_STEPS):
            stream.prepare(step)
        began = time.process_time()
        tokens = sum(stream.prepare(step).tokens for step in range(DRAWN_STEPS, DRAWN_STEPS + steps))
        return (time.process_time() - began) / tokens * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="prepared samples (default: some are made)")
    parser.add_argument("--steps", type=int, default=48, metavar="N", help="batches of a round (default: 48)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of which the median counts (default: 5)")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help=f"samples of a batch (default: {BATCH})")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="that share them (default: 1)")
    parser.add_argument("--partitions", type=int, metavar="N", help="default: as longmix chooses for the batch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feeding-") as made:
        if arguments.folder is None:
            write(Path(made), arguments.batch * (DRAWN_STEPS + arguments.steps))
        folder = arguments.folder or made
        kind = f"rows of {LENGTH} tokens" if arguments.folder is None else "these samples"
        share = arguments.batch // arguments.ranks
        for micro_batch in (8, 32)[: 1 if share < 32 else 2]:
            rounds = [
                seconds_per_million(
                    folder, micro_batch, arguments.steps, arguments.batch, arguments.ranks, arguments.partitions
                )
                for _ in range(arguments.rounds)
            ]
            sys.stdout.write(
                f"micro-batches of {micro_batch:>2} {kind}: {np.median(rounds):.3f} CPU seconds per million tokens "
                f"({min(rounds):.3f} to {max(rounds):.3f})\n"
            )


if __name__ == "__main__":
    main()
