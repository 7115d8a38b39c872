"""What a layer of each mixer costs on GPUs, by a model that needs none: python benchmarks/gpu_cost.py [--json FILE]

The layers run on tensors without data; every launch is counted, and a roofline turns launches, bytes and operations
into milliseconds. This is a model and no measurement: nothing has run on a GPU. docs/kernels.md says what it assumes.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import io
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import record
import tables
import torch
from gpu_model import corrected, layers, report
from gpu_model.cards import CARDS, UNITS, Launch

from longmix.data_prep.files import write_json
from longmix.kernels.common.interpreter import interpreted

BENCHMARK = "gpu_cost"


def main() -> None:
    """Count, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--record", action="store_true", help="keep them in results.csv, redraw docs/kernels.md")
    arguments = parser.parse_args()
    if interpreted():
        parser.error("TRITON_INTERPRET is 1: Triton's interpreter has other blocks than GPUs; unset it")
    if arguments.json and not Path(arguments.json).absolute().parent.is_dir():
        parser.error(f"--json: {Path(arguments.json).parent} is not a folder; make it first")
    found = {"layers": layer_rows(layers.cases())}
    report.show(report.layer_tables(found["layers"]))
    print(f"\n{report.verdict(found['layers'])}")
    print("A model, not a measurement: nothing has run on a GPU. docs/kernels.md says what it assumes.", flush=True)
    try:
        found["kernels"] = kernel_rows()
    except RuntimeError as error:
        *_, reason = str(error).splitlines()
        sys.exit(f"error: not every Triton kernel compiles, so nothing is written: {reason}")
    report.show(report.kernel_tables(found["kernels"]))
    if arguments.json:
        write_json(arguments.json, found)
    if arguments.record:
        keep(found)


def layer_rows(cases: list[layers.Case], tokens: int = layers.TOKENS, **fields: object) -> list[dict[str, object]]:
    """A row for each case; without triton none for those that need it, and a line on stderr.

    Args:
        tokens: of a batch.
        fields: in place of those of the base models.
    """
    if importlib.util.find_spec("triton") is None and any(case.needs_triton for case in cases):
        print("triton is not installed: the layers with Triton kernels are left out", file=sys.stderr)
        cases = [case for case in cases if not case.needs_triton]
    for mixer in dict.fromkeys(case.mixer for case in cases):
        if not layers.isolates_documents(mixer):
            print(f"{mixer} does not keep packed documents apart: no rows for them", file=sys.stderr)
    return [_row(case, tokens, fields) for case in cases]


def _row(case: layers.Case, tokens: int, fields: dict[str, object]) -> dict[str, object]:
    """Launches, bytes and operations in bf16, and those in fp16 under "float16"; milliseconds in each card's dtype."""
    fields = {**layers.fields_of(case.mixer), **fields}
    # Of every kind of card: dtype, and what softmax attention is there.
    kinds = {(card.dtype, card.flash) for card in CARDS}
    counts = {kind: layers.count(case, getattr(torch, kind[0]), kind[1], tokens, fields) for kind in kinds}
    times = {}
    for name, only in (("milliseconds", False), ("milliseconds_of_programs", True)):
        times[name] = {
            card.name: round(
                sum(1e3 * n * card.seconds(each, only) for each, n in counts[card.dtype, card.flash].launches.items()),
                4,
            )
            for card in CARDS
        }
    counted = counts["bfloat16", True]
    then = corrected.THEN.get(case.layer)
    as_measured = counted
    if case.layer == layers.BASELINE:
        as_then = dataclasses.replace(case, variant=layers.PORTABLE)
        as_measured = layers.count(as_then, torch.bfloat16, True, tokens, fields)
    elif then:
        as_measured = layers.count(case, torch.bfloat16, True, tokens, {**fields, **then})
    return {
        "layer": case.layer,
        "documents": case.documents,
        "positions": case.positions,
        **_totals(counted.launches),
        "kept": round(counted.kept),
        **times,
        "parts": corrected.parts_of(counted.launches),
        "parts as measured": corrected.parts_of(as_measured.launches),
        "float16": _totals(counts["float16", False].launches),
        "triton": _triton(counted.launches),
    }


def _totals(launches: Mapping[Launch, float]) -> dict[str, object]:
    operations = dict.fromkeys(UNITS, 0.0)
    for launch, number in launches.items():
        operations[launch.unit] += number * launch.operations
    return {
        "launches": round(sum(number * launch.launches for launch, number in launches.items()), 2),
        "bytes": round(sum(number * launch.bytes for launch, number in launches.items())),
        "operations": {unit: round(count) for unit, count in operations.items()},
    }


def _triton(launches: Mapping[Launch, float]) -> list[dict[str, object]]:
    """Triton's launches: kernel, programs, and how many of a layer's launches have so many."""
    found = Counter()
    for launch, number in launches.items():
        if launch.programs is not None:
            found[launch.name.removeprefix("triton "), launch.programs] += number
    return [{"kernel": k, "programs": p, "launches": round(n, 2)} for (k, p), n in sorted(found.items())]


def kernel_rows() -> list[dict[str, object]]:
    """A row for each Triton kernel and target, compiled, in minutes; without triton none, and a line on stderr."""
    if importlib.util.find_spec("triton") is None:
        print("triton is not installed: no kernel is compiled", file=sys.stderr)
        return []
    from gpu_model.compiling import compiled_kernels

    return [dataclasses.asdict(kernel) for kernel in compiled_kernels()]


def keep(found: dict[str, list[dict[str, object]]]) -> None:
    """Write everything to results.csv, in place of what was counted before, and redraw docs/kernels.md."""
    record.forget(BENCHMARK)
    with contextlib.redirect_stdout(io.StringIO()):  # the tables have said it
        for row in found["layers"]:
            name = f"{row['layer']}, {'documents' if row['documents'] else 'alone'}, N={row['positions']}"
            for card in CARDS:
                milliseconds = row["milliseconds"][card.name]
                kind = {"device": f"{card.name}, a model", "dtype": card.dtype}
                record.append(BENCHMARK, name, "modelled time of a layer", [milliseconds], "ms", **kind)
            kind = {"device": "GPU, a model", "dtype": "bfloat16"}
            record.append(BENCHMARK, name, "launches of a layer", [row["launches"]], "launches", **kind)
            record.append(BENCHMARK, name, "bytes moved by a layer", [row["bytes"] / 1e9], "GB", **kind)
            record.append(BENCHMARK, name, "bytes kept by a layer", [row["kept"] / 1e9], "GB", **kind)
        spilled = {}
        for row in found["kernels"]:
            spilled.setdefault(f"{row['name']}, {row['target']}", []).append(row["spilled_bytes"])
        for name, sizes in spilled.items():
            record.append(BENCHMARK, name, "most spilled by a thread", [max(sizes)], "bytes")
    made = {"date": datetime.date.today().isoformat(), "commit": record.commit(), "machine": record.machine()}
    sentence = tables.measured([made], "By a model, on no GPU. ").replace("Measured", "Counted")
    report.redraw(found, sentence)


if __name__ == "__main__":
    main()
