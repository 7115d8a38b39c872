"""The cost of a checkpoint to the step loop, written before the next step and behind it, and of going on from one.

    python benchmarks/checkpoint_cost.py [--steps 12] [--every 3] [--hidden-size 512] [--layers 8] [--threads 2]
                                         [--stage 2] [--processes 2] [--resume-with 4]

Trains a transformer on random tokens, with checkpoints, first with `checkpoint.asynchronous: false`, then true, where a
checkpoint also waits for the one before it; goes on from the last one for a step. Appends to benchmarks/results.csv,
with the size of a checkpoint: the seconds that the loop waited for one, and for the one that it waited for longest; the
seconds of loading one, with the rehearsal of a step before it; and the peak memory of the largest
process, of both runs.
"""

import argparse
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import commands
import record
import torch
from learned.cases import CONFIGS, SINGLE
from samples.random_tokens import write_samples

BENCHMARK = "checkpoint_cost"
# The trainer's closing line.
WAITED = re.compile(r"the step loop waited (\S+) s for one, (\S+) s at most")
# Its lines before and behind a checkpoint is loaded; the first comes before the rehearsal of a step.
BUILT, LOADED = "; dry run of one step", "\ngoing on from step"
PIECE = 2**22


@dataclass(frozen=True)
class Way:
    """A run whose checkpoints are measured."""

    asynchronous: bool
    arguments: argparse.Namespace
    data: Path
    folder: Path

    def words(self, stop_at: int, processes: int) -> list[str]:
        """Arguments of `longmix` that train up to a step."""
        of, size = self.arguments, self.arguments.hidden_size
        stage = [] if of.stage is None else [f"deepspeed=zero{of.stage}", f"precision={of.precision}"]
        return [
            *("train", str(CONFIGS / "model" / "transformer_tiny.yaml"), "objective.name=mlm", "precision=fp32"),
            *(*SINGLE, *stage, "--processes", str(processes)),
            *(
                f"model.num_hidden_layers={of.layers}",
                f"model.hidden_size={size}",
                f"model.intermediate_size={4 * size}",
            ),
            *(f"data.train={self.data}", f"run.dir={self.folder}", f"run.stop_at_step={stop_at}"),
            *(f"batch.samples={of.samples}", f"batch.micro_batch={of.samples // max(of.processes, of.resume_with)}"),
            *(f"optim.max_steps={of.steps + 1}", "optim.warmup_steps=1", f"checkpoint.every_steps={of.every}"),
            f"checkpoint.asynchronous={str(self.asynchronous).lower()}",
        ]

    def measure(self) -> None:
        """Run it, go on, and append what it took."""
        log, again = self.folder.with_suffix(".log"), self.folder.with_suffix(".again.log")
        of = self.arguments
        saving, _ = commands.watched_longmix(self.words(of.steps, of.processes), log, (), of.threads)
        one, longest = map(float, WAITED.search(log.read_text(encoding="utf-8")).groups())
        name = self._name(size_of_checkpoint(self.folder))
        words = self.words(of.steps + 1, of.resume_with)
        loading, moments = commands.watched_longmix(words, again, (BUILT, LOADED), of.threads)
        for figure, value, unit in (
            ("median wait", one, "s"),
            ("longest wait", longest, "s"),
            ("peak of a process, saving", saving["peak_bytes"] / 2**30, "GiB"),
            (f"rehearsal and loading, {of.resume_with} processes", moments[LOADED] - moments[BUILT], "s"),
            (f"peak of a process, loading, {of.resume_with} processes", loading["peak_bytes"] / 2**30, "GiB"),
        ):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            record.append(BENCHMARK, name, figure, [value], unit, device=device, threads=of.threads)

    def _name(self, size: int) -> str:
        of = self.arguments
        how = "asynchronous" if self.asynchronous else "blocking"
        shared = "" if of.stage is None else f"ZeRO {of.stage}, {of.precision}, {of.processes} processes, "
        return f"{how}, {shared}{size / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="steps of a run (default: 12)")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="steps between checkpoints (default: 3)")
    parser.add_argument("--hidden-size", type=int, default=512, metavar="N", help="width of the model (default: 512)")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="layers of the model (default: 8)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="samples of a batch (default: 8)")
    parser.add_argument("--length", type=int, default=128, metavar="N", help="tokens of a sample (default: 128)")
    parser.add_argument("--threads", type=int, default=2, help="threads of a process (default: 2)")
    parser.add_argument("--stage", type=int, choices=range(4), help="of ZeRO (default: without DeepSpeed, in fp32)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16", help="with --stage (default: bf16)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="that train (default: 1)")
    parser.add_argument("--resume-with", type=int, metavar="N", help="processes that go on (default: as many)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="disk to write to (default: the temporary folder)")
    arguments = parser.parse_args()
    arguments.resume_with = arguments.resume_with or arguments.processes
    if arguments.steps < arguments.every:
        parser.error(f"--steps is {arguments.steps}; allowed: at least {arguments.every}, the first checkpoint's")
    if arguments.samples % arguments.processes or arguments.samples % arguments.resume_with:
        parser.error(f"--samples is {arguments.samples}; allowed: what --processes and --resume-with divide")
    with tempfile.TemporaryDirectory(dir=arguments.work) as temporary:
        work = Path(temporary)
        record.append(BENCHMARK, "the disk, 1 GB in one file", "writing", [speed_of_disk(work / "file")], "MB/s")
        write_samples(work / "data", arguments.length, arguments.samples * (arguments.steps + 1))
        for asynchronous in (False, True):
            Way(asynchronous, arguments, work / "data", work / f"run-{asynchronous}").measure()


def speed_of_disk(path: Path) -> float:
    """MB a second at which a file is written until the disk says that it has it."""
    piece, began = os.urandom(PIECE), time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(10**9 // PIECE):
            file.write(piece)
        os.fsync(file.fileno())
    seconds = time.monotonic() - began
    size = path.stat().st_size
    path.unlink()
    return size / 1e6 / seconds


def size_of_checkpoint(run: Path) -> int:
    """Bytes of the newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
