"""What a run costs until its first step: imports, the ranks' meeting, the model and its engine, a rehearsal.

    python benchmarks/start_cost.py [--processes 1 4 16] [--stage 2]

Trains a small transformer for two steps with as many processes on this machine, one thread each. Appends to
benchmarks/results.csv, by the number of processes: the seconds until each line that the console tells, the processor
time of one process, the memory of the largest, and the sockets of each at the first step, with all connections made at
the start and with those alone that are needed (what longmix chooses by itself from 65 ranks on).
"""

import argparse
import os
import tempfile
from pathlib import Path

import commands
import record
from learned.cases import CONFIGS, SINGLE
from samples.random_tokens import write_samples

BENCHMARK = "start_cost"
LENGTH, STEPS = 32, 2
# What the console tells, and what has been done by then.
TOLD = {
    "; building ": "imports and data",
    "; dry run of one step": "the ranks' meeting, model and engine",
    f"train 1/{STEPS} ": "rehearsal and first step",
}
# Of torch: a rank connects to those alone that it exchanges with.
LAZY = "TORCH_GLOO_LAZY_INIT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="(default: 1 4 16)")
    parser.add_argument("--stage", type=int, choices=range(4), default=2, help="of ZeRO (default: 2)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        most = max(arguments.processes)
        write_samples(work / "data", LENGTH, STEPS * most)
        for processes in arguments.processes:
            for lazy in ("0", "1") if processes > 1 else ("0",):
                measure(work, processes, most, arguments.stage, lazy)


def measure(work: Path, processes: int, samples: int, stage: int, lazy: str) -> None:
    """Start a run with so many processes, and append what that took."""
    folder = work / f"run-{processes}-{lazy}"
    found: list[int] = []

    def note(text: str) -> None:
        if text == list(TOLD)[-1]:
            found.extend(sockets_of(str(folder)))

    words = [
        *("train", str(CONFIGS / "model" / "transformer_tiny.yaml"), "objective.name=mlm", "precision=fp32"),
        *(*SINGLE, "log.every_steps=1", f"deepspeed=zero{stage}", "--processes", str(processes)),
        *(f"data.train={work / 'data'}", f"run.dir={folder}", f"optim.max_steps={STEPS}", "optim.warmup_steps=1"),
        *(f"batch.samples={samples}", "batch.micro_batch=1"),
    ]
    log = folder.with_suffix(".log")
    took, moments = commands.watched_longmix(words, log, tuple(TOLD), note=note, **{LAZY: lazy})
    name = f"{processes} processes, {'connections as needed' if lazy == '1' else 'all connections'}"
    before = 0.0
    for text, figure in TOLD.items():
        record.append(BENCHMARK, name, figure, [moments[text] - before], "s", device="cpu", threads=1)
        before = moments[text]
    for figure, value, unit in (
        ("processor time of a process, the run's whole", took["cpu_seconds"] / processes, "s"),
        ("peak of a process", took["peak_bytes"] / 2**30, "GiB"),
        ("sockets of a process", max(found, default=0), ""),
    ):
        record.append(BENCHMARK, name, figure, [value], unit, device="cpu", threads=1)


def sockets_of(word: str) -> list[int]:
    """The sockets of each process that has this word in its command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word in (process / "cmdline").read_text():
                names = [os.readlink(path) for path in (process / "fd").iterdir()]
                found.append(sum(name.startswith("socket:") for name in names))
        except OSError:
            continue  # it has ended
    return found


if __name__ == "__main__":
    main()
