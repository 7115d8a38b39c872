"""One CSV for every benchmark: what was measured, against what, with which command, commit and machine."""

import csv
import datetime
import functools
import os
import platform
import re
import sys
from pathlib import Path

import torch

from longmix.data_prep.files import write_text
from longmix.trainer.settings.provenance import provenance
from longmix.trainer.tables.text import csv_cell
from longmix.trainer.tables.writing import from_csv

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS = (
    "date",
    "benchmark",
    "case",
    "figure",
    "value",
    "unit",
    "runs",
    "spread",
    "command",
    "commit",
    "torch",
    "machine",
    "device",
    "threads",
    "dtype",
    "shape",
    "p20",
    "p80",
    "memory",
)


def machine() -> str:
    """The processor or GPU, and how many; no host name."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores, {platform.machine()}, CPU only"


@functools.cache
def commit() -> str:
    """The commit that runs, with a mark where files differ from it; what benchmarks write themselves does not count."""
    made = provenance()
    changed = re.findall(r"^diff --git a/(\S+)", made["git_diff"] or "", re.MULTILINE)
    changed = [name for name in changed if name != "benchmarks/results.csv" and not name.startswith("docs/")]
    return (made["git_commit"] or "")[:12] + ("+changes" if changed else "")


def quantile(values: list[float], share: float) -> float:
    """The value below which a share of them lies, 0 .. 1, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    if place == below:
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def command_line() -> str:
    """The command by which this program was started."""
    return " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])


def append(
    benchmark: str,
    case: str,
    figure: str,
    values: list[float],
    unit: str,
    command: str | None = None,
    device: str = "",
    threads: int | str = "",
    dtype: str = "",
    shape: str = "",
    memory: float | None = None,
) -> float:
    """Append the median of `values`, with their range as the spread, and return it.

    Args:
        command: what to repeat; None: this process's own arguments.
        device, threads, dtype, shape: what the figure depends on, where it does.
        memory: peak beyond the arguments, in MB.
    """
    median = quantile(values, 0.5)
    row = {
        "date": datetime.date.today().isoformat(),
        "benchmark": benchmark,
        "case": case,
        "figure": figure,
        "value": f"{median:.4g}",
        "unit": unit,
        "runs": len(values),
        "spread": f"{min(values):.4g}..{max(values):.4g}",
        "command": command or command_line(),
        "commit": commit(),
        "torch": torch.__version__,
        "machine": machine(),
        "device": device,
        "threads": threads,
        "dtype": dtype,
        "shape": shape,
        "p20": f"{quantile(values, 0.2):.4g}",
        "p80": f"{quantile(values, 0.8):.4g}",
        "memory": "" if memory is None else f"{memory:.4g}",
    }
    is_new = not RESULTS.exists()
    with open(RESULTS, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow({name: csv_cell(value) if isinstance(value, str) else value for name, value in row.items()})
    print(f"{benchmark}, {case}: {figure} {row['value']} {unit} ({row['spread']})")
    return median


def forget(benchmark: str) -> None:
    """Drop the records of a benchmark whose figures follow from a commit alone, before those of this one."""
    if RESULTS.exists():
        head, *lines = RESULTS.read_bytes().decode().splitlines(keepends=True)
        kept = [line for line in lines if next(csv.reader([line]))[COLUMNS.index("benchmark")] != benchmark]
        write_text(RESULTS, "".join([head, *kept]))


def rows(benchmark: str) -> list[dict[str, str]]:
    """The records of a benchmark, the oldest first."""
    with open(RESULTS, newline="", encoding="utf-8") as file:
        return [row for row in from_csv(file.read()) if row["benchmark"] == benchmark]
