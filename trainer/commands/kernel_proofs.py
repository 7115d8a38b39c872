"""The GPUs of this machine at work, for `longmix doctor`: each computes something, and on each kind of them every
Triton kernel proves itself anew, with its times."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from longmix.kernels import ops, proving
from longmix.kernels.selection import GPU, may_prove, obstacle

from ..processes.precision import DTYPES, resolve_precision
from ..tables.writing import aligned

MEASURED_POSITIONS = 4096  # in a batch of proof.BATCH samples
HEADER = ("kernel", "dtype", "for", "relative error", "compiled, s", "proved, s", "Triton, ms", "PyTorch, ms", "runs")


def faulty_devices(devices: Sequence[torch.device], problems: list[str]) -> set[torch.device]:
    """The devices on which a new process cannot compute anything; `problems` get the reasons."""
    with ThreadPoolExecutor() as pool:
        faults = dict(zip(devices, pool.map(proving.fault, devices), strict=True))
    found = {device for device, reason in faults.items() if reason is not None}
    problems += [f"{device} computes nothing: {faults[device]}" for device in devices if device in found]
    return found


def proof_tables(devices: Sequence[torch.device], problems: list[str]) -> list[str]:
    """The lines of a table for each kind of card; `problems` get the kernels that fail."""
    operations = (*ops.OPERATIONS, *ops.AROUND_MIXERS)
    provable = [name for name in operations if may_prove(name)]
    others = [_row_of_other(name) for name in operations if name not in provable]
    cards: dict[str, torch.device] = {}
    for device in devices:
        cards.setdefault(proving.card(device), device)
    lines = []
    for card, device in cards.items():
        dtypes = dict.fromkeys((torch.float32, DTYPES[resolve_precision("auto", device)]))
        proofs = [proving.typical(name, dtype) for name in provable for dtype in dtypes]
        # And what runs have met: their failures count until they are tried again.
        proofs = sorted({*proofs, *proving.known_proofs(device)}, key=str)
        if proofs:
            told = f"longmix: Triton kernels are proved on {card}; compiling them may take minutes"
            print(told, file=sys.stderr, flush=True)
        verdicts = proving.prove_all(proofs, device, anew=True, measured_positions=MEASURED_POSITIONS)
        lines += ["", f"{card}, result and gradients, times for 3 x {MEASURED_POSITIONS} positions:"]
        lines += aligned(HEADER, [*map(_row, verdicts), *others], right=range(3, 8))
        problems += [
            f"{verdict.operation} ({verdict.dtype}) in Triton on {card}: {verdict.reason}; plain PyTorch runs in its "
            "place: please report it with these lines"
            for verdict in verdicts
            if not verdict.passed
        ]
    return lines


def _row(verdict: proving.Verdict) -> list[str]:
    times = (verdict.compile_seconds, verdict.seconds, verdict.milliseconds, verdict.portable_milliseconds)
    error = "-" if verdict.error is None else f"{verdict.error:.1e}"
    figures = [error, *("-" if x is None else f"{x:.2f}" for x in times)]
    spelled = {name: value for name, value in proving.spell(verdict.form).items() if name != "dtype" and value != ""}
    form = ", ".join(f"{name} {value}" for name, value in spelled.items())
    return [verdict.operation, verdict.dtype, form, *figures, _runs("triton" if verdict.passed else "portable")]


def _row_of_other(operation: str) -> list[str]:
    runs = _runs(f"portable ({obstacle(operation, 'triton', GPU)})")
    return [operation, "all", "all", *["-"] * 5, runs]


def _runs(chosen: str) -> str:
    forced = os.environ.get(ops.ENVIRONMENT_VARIABLE) or "auto"
    return chosen if forced == "auto" else f"{forced} ({ops.ENVIRONMENT_VARIABLE} says so)"
