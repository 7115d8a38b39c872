"""The time that a run over 10^8 samples takes to its first batch, at the start of an epoch and nine tenths into it.

`python benchmarks/samples/seek.py` writes a data set of that size in the room of one shard (every other is a link to
it), and measures in new processes: opening the data set, the first batch of 256 samples of 512 tokens on a single rank,
and the memory that this takes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import SAMPLES_PER_SHARD, ShardFile, shard_name
from longmix.data_prep.shards import LIST_INT32
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.stream import BatchStream
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.configuration import ObjectiveSection

VOCABULARY, LENGTH, ROW_GROUP = 32000, 512, 256
BATCH = 256
PARTITIONS, WINDOW = 256, 256  # as longmix chooses for this batch


def write(folder: Path, samples: int) -> None:
    """A data set of about `samples` samples of 512 tokens."""
    columns = {"input_ids": LIST_INT32}
    file = ShardFile(folder / shard_name(0), columns)
    generator = np.random.default_rng(0)
    for _ in range(SAMPLES_PER_SHARD // ROW_GROUP):
        # A frequent token is smaller, as in a vocabulary of text: so it compresses about as well.
        tokens = np.minimum(5 + generator.zipf(1.2, ROW_GROUP * LENGTH), VOCABULARY - 1).astype(np.int32)
        offsets = np.arange(0, len(tokens) + 1, LENGTH, dtype=np.int32)
        file.write_table(pa.Table.from_arrays([pa.ListArray.from_arrays(offsets, tokens)], schema=file.schema))
    first = file.close()
    entries = [{**first, "file": shard_name(number)} for number in range(-(-samples // SAMPLES_PER_SHARD))]
    for entry in entries[1:]:
        os.link(folder / first["file"], folder / entry["file"])
    Manifest(
        split="train",
        split_rule="made for a measurement",
        columns=columns,
        samples=len(entries) * SAMPLES_PER_SHARD,
        vocab_size=VOCABULARY,
        pad_token_id=3,
        mask_token_id=2,
        special_token_ids=[0, 1, 2, 3, 4],
        sequence_length=LENGTH,
        shards=entries,
    ).save(folder)


def first_batch(folder: str, share: float) -> dict[str, float]:
    """Seconds and megabytes to the first batch from `share` of an epoch on, in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, computed = time.perf_counter(), time.process_time()
    dataset = ShardedDataset(folder)
    opened = time.perf_counter()
    order = RunOrder([len(dataset)], [1.0], PARTITIONS, WINDOW, seed=0)
    objective = make_objective(ObjectiveSection(), 0, dataset.manifest, None)
    step = int(share * len(dataset)) // BATCH
    with BatchStream([dataset], order, objective, BATCH, 16, 0, 1, step, step + 1, BATCH * step) as stream:
        next(iter(stream))
    ended, computed = time.perf_counter(), time.process_time() - computed
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"open": opened - started, "first batch": ended - opened, "processor": computed, "memory": grown / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10**8, metavar="N", help="size of the data set (default: 10^8)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes for each figure (default: 3)")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "SHARE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        folder, share = arguments.measure
        sys.stdout.write(json.dumps(first_batch(folder, float(share))))
        return
    with tempfile.TemporaryDirectory(prefix="seek-") as folder:
        write(Path(folder), arguments.samples)
        for share in ("0", "0.9"):
            runs = [
                json.loads(subprocess.check_output([sys.executable, __file__, "--measure", folder, share]))
                for _ in range(arguments.rounds)
            ]
            figures = {name: np.median([run[name] for run in runs]) for name in runs[0]}
            sys.stdout.write(
                f"from {share:>3} of an epoch of {arguments.samples:,} samples: data set opened in "
                f"{figures['open']:.2f} s, first batch of {BATCH} after {figures['first batch']:.2f} s more; "
                f"{figures['processor']:.2f} s of a processor and {figures['memory']:.0f} MiB in all\n"
            )


if __name__ == "__main__":
    main()
