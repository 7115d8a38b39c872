"""The page's plots: times of the blocks at each length, tokens per second of whole models, both beside the cost
model's."""

import importlib.util
import io

from gpu_kit.prediction import milliseconds, tokens_per_second
from gpu_kit.records import DONE
from gpu_kit.setting import Setting

# Way -> marker and colour: filled where it is measured, empty where the cost model says it.
_WAYS = {"portable": ("o", "C0"), "kernels": ("^", "C1"), "compiled": ("s", "C2")}
_INCHES_OF_A_ROW = 0.22


def draw(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> str | None:
    """An SVG; None: matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    blocks = _times(setting, newest, prediction)
    models = _speeds(setting, newest, prediction)
    lengths = sorted({length for _, length, _ in blocks}) or [0]
    layers = sorted({layer for layer, _, _ in blocks}, reverse=True)
    heights = [1.5 + _INCHES_OF_A_ROW * len(rows) for rows in (layers, models)]
    with matplotlib.rc_context({"svg.hashsalt": "longmix", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(11, sum(heights)), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=heights)
        panels = above.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
        for axes, length in zip(panels, lengths, strict=True):
            _draw_blocks(axes, length, layers, blocks)
        above.suptitle("Time of a block, forward and backward; empty marks: the cost model, not measured")
        handles, labels = panels[0].get_legend_handles_labels()
        above.legend(handles, labels, loc="outside lower center", ncols=5)
        below.suptitle("Whole models in training; lines: the cost model's layers alone, not measured")
        _draw_models(below.subplots(), models)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _times(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> dict[tuple, tuple]:
    """(layer, N, way) -> milliseconds measured and predicted, of models of equal parameters as in the table."""
    found = {}
    for key, row in newest.items():
        if key.startswith("2/block/") and row["status"] == DONE:
            layer, length, way = key.split("/")[2:]
            measured = setting.share_of_blocks(row["answer"]["blocks"]) * row["answer"]["both"]["median"]
            model = layer.removesuffix("-documents")
            predicted = None  # of what torch compiles the cost model says nothing
            if way != "compiled":
                predicted = milliseconds(prediction, setting.card, model, way, int(length), model != layer)
            found[layer, int(length), way] = measured, predicted
    return found


def _speeds(setting: Setting, newest: dict[str, dict], prediction: dict | None) -> dict[str, tuple]:
    """Run -> tokens per second measured and predicted, the last run first, as bars are drawn from below."""
    rows = {
        key.removeprefix("3/speed/"): row["answer"]
        for key, row in reversed(newest.items())
        if key.startswith("3/speed/") and row["status"] == DONE
    }
    return {
        name: (answer["tokens_per_second"], tokens_per_second(prediction, setting, name.split("/")[0], answer))
        for name, answer in rows.items()
    }


def _draw_blocks(axes, length: int, layers: list[str], blocks: dict[tuple, tuple]) -> None:
    from matplotlib.ticker import LogLocator

    for way, (marker, colour) in _WAYS.items():
        looks = ((way, colour), (f"{way}, cost model", "none"))
        for index, (label, face) in enumerate(looks[:1] if way == "compiled" else looks):
            points = [
                (found[index], layers.index(layer))
                for (layer, at, by), found in blocks.items()
                if (at, by) == (length, way) and found[index] is not None
            ]
            xs, ys = zip(*points, strict=True) if points else ((), ())
            axes.scatter(xs, ys, marker=marker, edgecolors=colour, facecolors=face, label=label)
    axes.set(title=f"N = {length}", xlabel="ms", yticks=range(len(layers)), yticklabels=layers)
    if blocks:
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)


def _draw_models(axes, models: dict[str, tuple]) -> None:
    axes.barh(list(models), [measured for measured, _ in models.values()], height=0.6)
    for place, (_, predicted) in enumerate(models.values()):
        if predicted is not None:
            axes.vlines(predicted, place - 0.4, place + 0.4, colors="C3")
    axes.set(xlabel="tokens per second")
    axes.grid(axis="x", alpha=0.3)
