"""What the cost model says of layers (benchmarks/gpu_cost.py): the pack has it, else it is counted beside the first
measurements, which are not timed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from commands import end_with_parent
from gpu_kit.setting import LAYERS_OF_THE_TRANSFORMER, Setting

from longmix.data_prep.files import write_json
from longmix.trainer.processes import cards

# In a pack, and in the work folder.
FILE = "prediction.json"
_COUNT = "import sys; from gpu_kit import prediction; prediction.write(sys.argv[1])"
# The model's cards, by the names of ours: of the same chip. The page names the data sheet that the figures are of.
CARDS = {"V100": "V100", "V100-PCIe": "V100", "A100-40": "A100", "A100-80": "A100", "H100": "H100", "H200": "H200"}
# The model's names of what stage 2 measures: plain PyTorch has a name of its own.
_PLAIN = ", portable"


def write(path: str | Path) -> None:
    """Count the layers, which takes half a minute and no GPU."""
    import gpu_cost
    from gpu_model import layers

    write_json(path, {"layers": gpu_cost.layer_rows(layers.cases())})


class CostModel:
    """The count in the background, where no pack has it; `answer` asks whether it has ended."""

    def __init__(self, setting: Setting):
        packed = [] if setting.pack is None else [setting.pack / FILE]
        self.path = next((path for path in packed if path.is_file()), setting.work / FILE)
        self.unfinished, self.process = setting.work / f"new-{FILE}", None
        if not self.path.is_file() and setting.device == "cuda":
            with open(setting.work / "logs" / "prediction.log", "wb") as log:
                self.process = subprocess.Popen(
                    ["nice", sys.executable, "-c", _COUNT, str(self.unfinished)],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )

    def answer(self) -> dict | None:
        """Its figures; None: not there (yet), or not readable."""
        if self.process is not None and self.process.poll() == 0:
            self.unfinished.replace(self.path)
            self.process = None
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.path.read_text(encoding="utf-8"))
        return None

    def end(self) -> None:
        """End the command if it still runs."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def card_of(name: str) -> str | None:
    """The model's name of a card; None: it has none."""
    card = cards.card_of(name)
    return None if card is None else CARDS.get(card.name)


def modelled(name: str) -> str:
    """Which card the model's figures are of, for the page."""
    from gpu_model.cards import CARDS as MODELS

    return next(card.model for card in MODELS if card.name == card_of(name))


def milliseconds(
    prediction: dict | None, card: str, model: str, way: str, length: int, documents: bool = False
) -> float | None:
    """The predicted time of a layer, forward and backward; None: not predicted.

    Args:
        card: as the driver calls it.
        way: kernels, or another: then that of plain PyTorch.
    """
    named = model if way == "kernels" else f"{model}{_PLAIN}"
    known = card_of(card)
    for row in prediction["layers"] if prediction is not None and known is not None else ():
        if (row["layer"], bool(row["documents"]), row["positions"]) == (named, documents, length):
            return row["milliseconds"].get(known)
    return None


def tokens_per_second(prediction: dict | None, setting: Setting, model: str, answer: dict) -> float | None:
    """What the layers of a base model alone would allow in training, with the kernels that the run had; None: not
    predicted.

    Args:
        answer: of the run, with `kernels` as it noted them, and with `cards` where it had several.
    """
    way = "kernels" if "triton" in answer.get("kernels", "") else "portable"
    layer = milliseconds(prediction, setting.card, model, way, setting.rows)
    if layer is None:
        return None
    return 1e3 * setting.tokens / (LAYERS_OF_THE_TRANSFORMER * layer) * answer.get("cards", 1)
