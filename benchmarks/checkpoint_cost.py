"""The cost of a checkpoint to the step loop, written before the next step and behind it.

    python benchmarks/checkpoint_cost.py [--steps 12] [--hidden-size 512] [--threads 2]

Trains a transformer of eight layers on random tokens in one process, with a checkpoint every third step, first with
`checkpoint.asynchronous: false`, then true. Appends the seconds that the loop waited for one, and for the one that it
waited for longest, to benchmarks/results.csv, with the size of a checkpoint.
"""

import argparse
import re
import tempfile
from pathlib import Path

import commands
import record
import torch
from learned.cases import CONFIGS, SINGLE
from random_tokens import write_samples

BENCHMARK = "checkpoint_cost"
EVERY, SAMPLES, LENGTH = 3, 8, 128
# The trainer's closing line.
WAITED = re.compile(r"the step loop waited (\S+) s for one, (\S+) s at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="steps of a run (default: 12)")
    parser.add_argument("--hidden-size", type=int, default=512, metavar="N", help="width of the model (default: 512)")
    parser.add_argument("--threads", type=int, default=2, help="threads of a run (default: 2)")
    arguments = parser.parse_args()
    if arguments.steps < EVERY:
        parser.error(f"--steps is {arguments.steps}; allowed: at least {EVERY}, the first checkpoint's")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_samples(work / "data", LENGTH, SAMPLES * arguments.steps)
        for asynchronous in (False, True):
            run, log = work / f"run-{asynchronous}", work / f"log-{asynchronous}"
            words = ["train", *run_arguments(arguments, work / "data", run, asynchronous)]
            commands.longmix(words, log, threads=arguments.threads)
            one, longest = map(float, WAITED.search(log.read_text(encoding="utf-8")).groups())
            megabytes = size_of_checkpoint(run) / 1e6
            name = f"{'asynchronous' if asynchronous else 'blocking'}, {megabytes:.0f} MB"
            for figure, seconds in (("median wait", one), ("longest wait", longest)):
                record.append(BENCHMARK, name, figure, [seconds], "s", device=device, threads=arguments.threads)


def run_arguments(arguments: argparse.Namespace, data: Path, run: Path, asynchronous: bool) -> list[str]:
    """Arguments of `longmix train`."""
    size = arguments.hidden_size
    return [
        *(str(CONFIGS / "model" / "transformer_tiny.yaml"), "objective.name=mlm", "precision=fp32", *SINGLE),
        *("model.num_hidden_layers=8", f"model.hidden_size={size}", f"model.intermediate_size={4 * size}"),
        *(f"data.train={data}", f"run.dir={run}", f"batch.samples={SAMPLES}", f"batch.micro_batch={SAMPLES}"),
        *(f"optim.max_steps={arguments.steps}", "optim.warmup_steps=1", f"checkpoint.every_steps={EVERY}"),
        f"checkpoint.asynchronous={str(asynchronous).lower()}",
    ]


def size_of_checkpoint(run: Path) -> int:
    """Bytes of the newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
