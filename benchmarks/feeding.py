"""CPU seconds to feed a million tokens: reading, order, masks and collation of one rank's batches.

`python benchmarks/feeding.py [FOLDER]` prepares batches of 256 samples for masked language modelling as
`longmix train` does it behind the steps, from a prepared data set, or else from rows of 512 tokens that it makes, in
micro-batches of 8 and of 32. The first steps, which open files, do not count; the median of the rounds does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from samples.seek import BATCH, LENGTH, PARTITIONS, WINDOW, write

from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.stream import DRAWN_STEPS, BatchStream
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.configuration import ObjectiveSection


def seconds_per_million(folder: str, micro_batch: int, steps: int) -> float:
    """CPU seconds of this process for a million tokens."""
    dataset = ShardedDataset(folder)
    order = RunOrder([len(dataset)], [1.0], PARTITIONS, WINDOW, seed=0)
    objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
    with BatchStream([dataset], order, objective, BATCH, micro_batch, 0, 1, 0, 0) as stream:
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feeding-") as made:
        if arguments.folder is None:
            write(Path(made), BATCH * (DRAWN_STEPS + arguments.steps))
        folder = arguments.folder or made
        kind = f"rows of {LENGTH} tokens" if arguments.folder is None else "these samples"
        for micro_batch in (8, 32):
            rounds = [seconds_per_million(folder, micro_batch, arguments.steps) for _ in range(arguments.rounds)]
            sys.stdout.write(
                f"micro-batches of {micro_batch:>2} {kind}: {np.median(rounds):.3f} CPU seconds per million tokens "
                f"({min(rounds):.3f} to {max(rounds):.3f})\n"
            )


if __name__ == "__main__":
    main()
