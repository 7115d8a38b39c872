"""The plots of docs/kernels.md: time against length."""

import io
from pathlib import Path

import matplotlib
from kernel.cases import LAYERS, OPERATIONS, YARDSTICKS
from kernel.figures import BOTH, FORWARD, LAYER, LENGTHS, Figures, crossover
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longmix.data_prep.files import write_text

TITLES = {FORWARD: "forward", BOTH: "forward and backward"}
# Implementation or yardstick -> (label, colour, line).
STYLES = {
    "baseline": ("the paper's algorithm", "#b0413e", "--"),
    "portable": ("plain PyTorch", "#c08a1e", "-."),
    "ours": ("our kernels", "#1f6f8b", "-"),
    "softmax": ("softmax attention", "#444444", "-"),
    "fnet": ("FNet's transform", "#999999", ":"),
}
# The same figures give the same file.
SETTINGS = {"svg.hashsalt": "longmix", "svg.fonttype": "none", "font.size": 8, "axes.titlesize": 9}


def draw_all(figures: Figures, folder: Path) -> list[Path]:
    """Write operations.svg and layers.svg into `folder`; returns what was written."""
    written = []
    for name, cases in (
        ("operations", list(OPERATIONS)),
        ("layers", [f"{LAYER}{layer}" for layer in LAYERS if layer not in YARDSTICKS]),
    ):
        if any(figures.series(case, FORWARD, figures.ours(case, LENGTHS[0])) for case in cases):
            path = folder / f"{name}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, draw(figures, cases))
            written.append(path)
    return written


def draw(figures: Figures, cases: list[str]) -> str:
    """An SVG: a row of panels for each case, with one panel for each direction."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(7.5, 2.1 * len(cases) + 0.5), layout="constrained")
        panels = figure.subplots(len(cases), 2, squeeze=False, sharex=True)
        for case, row in zip(cases, panels, strict=True):
            for direction, axes in zip(TITLES, row, strict=True):
                _panel(axes, figures, case, direction)
        entries = {}
        for axes in panels.flat:
            entries.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries), frameon=False)
        for axes in panels[-1]:
            axes.set_xlabel("N")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _panel(axes: Axes, figures: Figures, case: str, direction: str) -> None:
    ours = figures.ours(case, LENGTHS[0])
    lines = {name: (case, name) for name in ("baseline", "portable")}
    if ours != "portable":
        lines["ours"] = (case, ours)
    if case.startswith(LAYER):
        lines.update({name: (f"{LAYER}{name}", "auto") for name in YARDSTICKS})
    for style, (line, implementation) in lines.items():
        _line(axes, figures, line, direction, implementation, style)
    axes.set(xscale="log", yscale="log", ylabel="ms", title=f"{case.removeprefix(LAYER)}, {TITLES[direction]}")
    axes.set_xticks(LENGTHS, [f"{length // 1024}k" if length >= 1024 else str(length) for length in LENGTHS])
    axes.minorticks_off()
    axes.grid(color="#e4e4e4", linewidth=0.5)
    if case.startswith(LAYER):
        _mark_crossover(axes, figures, case, direction, ours)


def _line(axes: Axes, figures: Figures, case: str, direction: str, implementation: str, style: str) -> None:
    median = figures.series(case, direction, implementation)
    if not median:
        return
    label, colour, line = STYLES[style]
    low, high = (figures.series(case, direction, implementation, column) for column in ("p20", "p80"))
    axes.plot(median.keys(), median.values(), line, color=colour, marker=".", markersize=3, linewidth=1.2, label=label)
    axes.fill_between(list(median), list(low.values()), list(high.values()), color=colour, alpha=0.15, linewidth=0)


def _mark_crossover(axes: Axes, figures: Figures, case: str, direction: str, ours: str) -> None:
    mine = figures.series(case, direction, ours)
    where = crossover(mine, figures.series(f"{LAYER}softmax", direction, "auto"))
    if where is None:
        return
    axes.axvline(where, color=STYLES["ours"][1], linewidth=0.8, linestyle=":")
    text = f"softmax attention is\nslower from N = {where:.0f}" + (" or less" if where == min(mine) else "")
    axes.text(0.97, 0.05, text, transform=axes.transAxes, ha="right", fontsize=7)
