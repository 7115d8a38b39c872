"""The tables and plots of docs/kernels.md, drawn from benchmarks/results.csv: python benchmarks/kernel_report.py"""

import math
from dataclasses import dataclass

import record
import tables
import torch
from kernel import plots
from kernel.cases import LAYERS, OPERATIONS, YARDSTICKS
from kernel.figures import BOTH, FORWARD, LAYER, LENGTHS, Figures

from longmix.data_prep.files import write_text

DOCUMENT = record.RESULTS.parents[1] / "docs" / "kernels.md"
LENGTH = 4096  # that of the goals
GPU_LENGTH = 8192
ABSENT = "–"
TOO_LARGE = "> 8 GB"
SOFTMAX = f"{LAYER}softmax"
DIRECTIONS = {FORWARD: "forward", BOTH: "forward + backward"}
PICTURES = {
    "operations": "![Time of each operation against the length](kernels/operations.svg)",
    "layers": "![Time of each layer against the length, with the crossover to softmax attention](kernels/layers.svg)",
}


@dataclass(frozen=True)
class Goal:
    """The factor by which a case is to be faster than something else; `memory`: sizes of its values at most, beside
    arguments, result and gradients."""

    case: str
    against: str
    forward: float
    both: float
    memory: float | None = None


GOALS = (
    Goal("givens_mix", "baseline", 25, 20, memory=3),
    Goal("link_mix", "baseline", 8, 8),
    Goal("wavelet-1", "baseline", 6, 5),
    Goal("feature_attention-causal", "baseline", 5, 5),
    *(Goal(case, "portable", 2, 2) for case in ("givens_mix", "link_mix", "wavelet-1", "feature_attention-causal")),
    *(Goal(f"{LAYER}{name}", SOFTMAX, 1, 1) for name in LAYERS if name not in YARDSTICKS),
)


def redraw() -> None:
    """Draw everything anew that there are figures of."""
    figures = Figures("cpu", "float32")
    text = DOCUMENT.read_text(encoding="utf-8")
    if figures.rows:
        made = tables.measured(figures.rows.values())
        text = tables.replace(text, "goals", f"{goals_table(figures)}\n\n{made}")
        text = tables.replace(text, "operations", f"{operations_table(figures, LENGTH)}\n\n{PICTURES['operations']}")
        layers = [layers_table(figures, each) for each in DIRECTIONS]
        text = tables.replace(text, "layers", "\n\n".join([*layers, PICTURES["layers"]]))
        plots.draw_all(figures, DOCUMENT.parent / DOCUMENT.stem)
    gpu = gpu_tables()
    if gpu:
        text = tables.replace(text, "gpu", gpu)
    write_text(DOCUMENT, text)


def goals_table(figures: Figures) -> str:
    """The goals and the measured figures; those that miss a goal in italics."""
    header = ["", "times faster than", "forward: asked", "measured", "forward + backward: asked", "measured"]
    rows = []
    for goal in GOALS:
        cells = [f"`{goal.case}`", "softmax attention" if goal.against == SOFTMAX else goal.against]
        for direction, asked in ((FORWARD, goal.forward), (BOTH, goal.both)):
            ratio = faster(figures, goal, direction)
            cells += [_asked(asked), ABSENT if ratio is None else _marked(_times(ratio), _meets(ratio, asked))]
        if goal.memory is not None:
            used = memory_beyond(figures, goal.case)
            reached = ABSENT if used is None else _marked(f"{used:.1f}", used <= goal.memory)
            cells[-2] += f", memory ≤ {goal.memory:g}"
            cells[-1] += f", {reached}"
        rows.append(cells)
    return tables.draw(header, rows)


def faster(figures: Figures, goal: Goal, direction: str) -> float | None:
    """The factor by which the case that a goal names takes longer."""
    mine = figures.milliseconds(goal.case, direction, figures.ours(goal.case, LENGTH), LENGTH)
    if goal.against == SOFTMAX:
        other = figures.milliseconds(SOFTMAX, direction, "auto", LENGTH)
    else:
        other = figures.milliseconds(goal.case, direction, goal.against, LENGTH)
    return None if mine is None or other is None else other / mine


def memory_beyond(figures: Figures, case: str) -> float | None:
    """Peak memory of forward and backward beside arguments, result and gradients, in sizes of the values."""
    row = figures.row(case, BOTH, figures.ours(case, LENGTH), LENGTH)
    if row is None:
        return None
    prepared = OPERATIONS[case].prepare(LENGTH, torch.device("cpu"), figures.dtype)
    held = prepared.weights.nbytes + sum(leaf.nbytes for leaf in prepared.leaves)
    return max(1e6 * float(row["memory"]) - held, 0.0) / prepared.weights.nbytes


def operations_table(figures: Figures, length: int) -> str:
    """Time, memory and share of the bandwidth of every operation at one length."""
    header = ["", "", "baseline", "portable", "ours", "ours: MB", "least moved, MB", "of copying's bandwidth"]
    rows = []
    for name, case in OPERATIONS.items():
        ours = figures.ours(name, length)
        for direction, least in zip(DIRECTIONS, case.least_moved(length, figures.dtype), strict=True):
            row = figures.row(name, direction, ours, length)
            if row is None:
                continue
            others = [figures.milliseconds(name, direction, other, length) for other in ("baseline", "portable")]
            seconds, rate = float(row["value"]) / 1e3, figures.bandwidth()
            rows.append(
                [
                    f"`{name}`" if direction == FORWARD else "",
                    DIRECTIONS[direction],
                    *map(_milliseconds, others),
                    "as portable" if ours == "portable" else _milliseconds(1e3 * seconds),
                    _memory(row),
                    f"{least / 1e6:.1f}",
                    ABSENT if rate is None else f"{100 * least / seconds / rate:.0f} %",
                ]
            )
    return tables.draw(header, rows)


def layers_table(figures: Figures, direction: str) -> str:
    """Milliseconds of every mixer against the length, and how they compare at LENGTH; italics: softmax is faster."""
    others = [f"{name} at {LENGTH}" for name in ("baseline", "portable")]
    header = [DIRECTIONS[direction], *(f"N = {length}" for length in LENGTHS), *others, f"MB at {LENGTH}"]
    rows = []
    for name in LAYERS:
        case = f"{LAYER}{name}"
        cells = []
        for length in LENGTHS:
            mine = figures.milliseconds(case, direction, figures.ours(case, length), length)
            softmax = figures.milliseconds(SOFTMAX, direction, "auto", length)
            slower = name not in YARDSTICKS and mine is not None and softmax is not None and mine >= softmax
            cells.append(_marked(_milliseconds(mine), not slower))
        cells += [
            _milliseconds(figures.milliseconds(case, direction, other, LENGTH)) for other in ("baseline", "portable")
        ]
        cells.append(_memory(figures.row(case, direction, figures.ours(case, LENGTH), LENGTH)))
        rows.append([f"`{name}`", *cells])
    return tables.draw(header, rows)


def gpu_tables() -> str:
    """The tables of what was measured on a GPU, for each dtype; empty if nothing was."""
    parts = []
    for dtype in ("float32", "float16", "bfloat16"):
        figures = Figures("cuda", dtype)
        if figures.rows:
            made = tables.measured(figures.rows.values(), f"{dtype}, N = {GPU_LENGTH} for the operations. ")
            layers = [layers_table(figures, each) for each in DIRECTIONS]
            parts += [operations_table(figures, GPU_LENGTH), *layers, made]
    return "\n\n".join(parts)


def _meets(ratio: float, asked: float) -> bool:
    return ratio > 1 if asked == 1 else ratio >= asked


def _asked(asked: float) -> str:
    return "faster" if asked == 1 else f"≥ {asked:g}"


def _times(ratio: float) -> str:
    return TOO_LARGE if math.isinf(ratio) else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _marked(text: str, reached: bool) -> str:
    return text if reached else f"*{text}*"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    return TOO_LARGE if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _memory(row: dict[str, str] | None) -> str:
    if row is None:
        return ABSENT
    return f"{float(row['memory']):.0f}" if row["memory"] else TOO_LARGE


if __name__ == "__main__":
    redraw()
