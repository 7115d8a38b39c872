"""One CSV for every benchmark: what was measured, against what, with which command, commit and machine."""

import csv
import datetime
import os
import platform
import re
import sys
from pathlib import Path

import torch

from longmix.trainer.provenance import provenance

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
)


def machine() -> str:
    """The processor or GPU, and how many; no host name."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores, {platform.machine()}, CPU only"


def commit() -> str:
    """The commit that runs, with a mark where files differ from it; what benchmarks write themselves does not count."""
    made = provenance()
    changed = re.findall(r"^diff --git a/(\S+)", made["git_diff"] or "", re.MULTILINE)
    changed = [name for name in changed if name != "benchmarks/results.csv" and not name.startswith("docs/")]
    return (made["git_commit"] or "")[:12] + ("+changes" if changed else "")


def append(benchmark: str, case: str, figure: str, values: list[float], unit: str, command: str | None = None) -> float:
    """Append the median of `values`, with their range as the spread, and return it.

    `command`: what to repeat; None: this process's own arguments.
    """
    ordered = sorted(values)
    median = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
    row = {
        "date": datetime.date.today().isoformat(),
        "benchmark": benchmark,
        "case": case,
        "figure": figure,
        "value": f"{median:.4g}",
        "unit": unit,
        "runs": len(ordered),
        "spread": f"{ordered[0]:.4g}..{ordered[-1]:.4g}",
        "command": command or " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "commit": commit(),
        "torch": torch.__version__,
        "machine": machine(),
    }
    is_new = not RESULTS.exists()
    with open(RESULTS, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(f"{benchmark}, {case}: {figure} {row['value']} {unit} ({row['spread']})")
    return median
