"""The verb `inspect-order`: which samples a step uses, from the manifests alone."""

import argparse
from collections.abc import Iterator

from longmix.data_prep.errors import UserError, printable

from ..models.field_check import quick_field_mistakes
from ..settings import reading
from ..settings.configuration import RunConfiguration
from ..tables.writing import in_columns
from .arguments import add_settings, split


def add_parser(verbs) -> None:
    """Add `inspect-order` to the command line."""
    parser = verbs.add_parser(
        "inspect-order",
        help="which samples a step of a run uses, without running it",
        description="List the samples of one step in the order of reading: rank, source, epoch, sample, and the shard "
        "and row that hold it. Only manifests are read, with batch.group_by_length also the lengths of the samples "
        "around the step, and any step is as near as the first.",
        epilog="Example: longmix inspect-order runs/first --step 90000 --processes 8",
    )
    add_settings(parser, "as for longmix train")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step; the first is 1")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="ranks that share it (default: 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    checked = reading.load(*split(arguments.settings), quick_field_mistakes)
    for line in samples_of_step(checked, arguments.step, arguments.processes):
        print(printable(line))
    return 0


def samples_of_step(configuration: RunConfiguration, step: int, processes: int) -> Iterator[str]:
    """Lines of a table: rank, source, epoch, sample, and where that sample is stored; in the order of reading.

    Step 1 is the first; every step is taken to have `batch.samples`, whatever the run had before. Time and memory
    depend on the batch, not on how far into the run the step is.

    Raises:
        UserError: a step that the run does not have, or whatever training would refuse of its data.
    """
    from ..samples.run_data import check_processes, open_data

    last = configuration.optim.max_steps
    if not 1 <= step <= last:
        raise UserError(f"--step is {step}, but the run has the steps 1 to {last} (optim.max_steps)")
    if processes < 1:
        raise UserError(f"--processes is {processes}, but must be at least 1")
    check_processes(configuration, processes)
    data = open_data(configuration)
    batch = configuration.batch.samples
    paths = [source.path for source in configuration.data.sources()]
    yield f"step {step:,} of {last:,}: places {(step - 1) * batch:,} to {step * batch - 1:,} of the run's order"
    rows = [("rank", "source", "epoch", "sample", "shard", "row")]
    for rank in range(processes):
        draw = data.order.share_of_rank((step - 1) * batch, batch, rank, processes)
        for source, epoch, sample in zip(draw.source, draw.epoch, draw.sample, strict=True):
            shard, row = data.train[source].locate(sample)
            file = data.train[source].manifest.shards[shard]["file"]
            rows.append((str(rank), paths[source], str(epoch), str(sample), file, str(row)))
    yield from in_columns(rows)
