"""The page's plots: time of the blocks against the length, tokens per second of whole models."""

import importlib.util
import io

from gpu_kit.records import DONE
from gpu_kit.setting import Setting

_STYLES = {"portable": "-", "kernels": "--", "compiled": ":"}


def draw(setting: Setting, newest: dict[str, dict]) -> str | None:
    """An SVG; None: matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "longmix", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _blocks(left, newest)
        _models(right, newest)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _blocks(axes, newest: dict[str, dict]) -> None:
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for key, row in newest.items():
        if key.startswith("2/block/") and row["status"] == DONE:
            layer, length, way = key.split("/")[2:]
            lines.setdefault((layer, way), {})[int(length)] = row["answer"]["both"]["median"]
    layers = sorted({layer for layer, _ in lines})
    for (layer, way), found in sorted(lines.items()):
        lengths = sorted(found)
        axes.plot(
            lengths,
            [found[length] for length in lengths],
            _STYLES.get(way, "-"),
            marker=".",
            color=f"C{layers.index(layer) % 10}",
            label=f"{layer}, {way}",
        )
    axes.set(title="a block, forward and backward", xlabel="N", ylabel="ms")
    if lines:
        axes.set(xscale="log", yscale="log")
        axes.legend(fontsize=6, ncols=2)


def _models(axes, newest: dict[str, dict]) -> None:
    speeds = {
        key.removeprefix("3/speed/"): row["answer"]["tokens_per_second"]
        for key, row in newest.items()
        if key.startswith("3/speed/") and row["status"] == DONE
    }
    axes.barh(list(speeds), list(speeds.values()))
    axes.set(title="whole models in training", xlabel="tokens per second")
