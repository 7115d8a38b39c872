"""CONTRIBUTING's recipes are enough: a mixer and an objective, added to a copy of the code by them, train two steps."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("configs", "data_prep", "kernels", "modeling", "trainer")
HEADS = (
    "MaskedLM",
    "SequenceClassification",
    "SequencePairClassification",
    "TokenClassification",
    "Forecasting",
)

# A mixer that adds to each token the mean of the valid ones.
CONFIGURATION = '''"""Configuration of the toy mixer."""

from ..configuration import MixerConfig


class ToyConfig(MixerConfig):
    """A mean of the other tokens.

    Args:
        share: how much of the mean is taken.
    """

    model_type = "toy"
    not_causal_because = "its mean is over all tokens"

    share: float = 0.5

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require("share", 0 < self.share <= 1, "0 < share <= 1")
'''
MIXER = '''"""The mean of the valid tokens."""

import torch

from ..block import Mixer, PreNormBlock
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForMaskedLM
from ..masking import keep_valid, masked_mean
from ..model import MixerModel, MixerPreTrainedModel
from .configuration_toy import ToyConfig


class ToyMixer(Mixer):
    """x + share * mean(x)."""

    paper_block = PreNormBlock

    def __init__(self, config: ToyConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.value = torch.nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """See Mixer."""
        values = self.value(keep_valid(hidden_states, context.mask))
        mean = masked_mean(values, context.mask)[:, None].to(values.dtype)
        return keep_valid(values + self.config.share * mean, context.mask)


class ToyPreTrainedModel(MixerPreTrainedModel):
    """Base of the toy models."""

    config_class = ToyConfig
    mixer_class = ToyMixer


class ToyModel(ToyPreTrainedModel, MixerModel):
    """See MixerModel."""
'''
MODEL_CLASS = '''

class ToyFor{head}(ToyPreTrainedModel, MixerFor{head}):
    """See MixerFor{head}."""

    encoder_class = ToyModel
'''
ORACLE = '''"""The toy mixer by its equation."""

TINY = {}
VARIANTS = {"all": {"share": 1.0}}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    values = x @ mixer.value.weight.T + mixer.value.bias
    return values + mixer.config.share * values.mean(0)
'''
OBJECTIVE = '''"""Classification whose loss is a hinge."""

import torch

from ..samples.collate import Batch
from .labelled_samples import LabelledSamples
from .model_inputs import accepted


def make(auto_class, section, seed, manifest, load_tokenizer):
    """The maker that the row of settings/objectives.py names."""
    return Hinge(auto_class, manifest.pad_token_id, False, None)


class Hinge(LabelledSamples):
    """Multi-class hinge loss of whole samples."""

    def _loss_sum(self, model, batch: Batch):
        logits = model(**accepted(model, batch, without="labels")).logits.float()
        loss = torch.nn.functional.multi_margin_loss(logits, batch["labels"], reduction="sum")
        return logits, loss, None
'''
ROW = """    "hinge": ObjectiveRow(
        maker="longmix.trainer.objectives.hinge:make",
        auto_class="transformers:AutoModelForSequenceClassification",
        figures=_OF_CLASSES,
        labelled="sample",
    ),
"""
RUN = """
import json, sys
from longmix.trainer.cli import main
codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
sys.exit(max(codes))
"""


class Copy:
    """A copy of the code that is changed by recipes; it notes which files they touch."""

    def __init__(self, folder: Path):
        self.folder, self.touched = folder, set()
        for name in (*PACKAGES, "tests/modeling", "pyproject.toml", "CONTRIBUTING.md"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(source, folder / name)
        shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
        (folder / "path" / "longmix").mkdir(parents=True)
        for name in PACKAGES:
            (folder / "path" / "longmix" / name).symlink_to(folder / name, target_is_directory=True)

    def add(self, name: str, text: str) -> None:
        """A new file."""
        path = self.folder / name
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.touched.add(name)

    def change(self, name: str, old: str, new: str) -> None:
        """A line in a file that is there."""
        text = (self.folder / name).read_text()
        assert text.count(old) == 1
        (self.folder / name).write_text(text.replace(old, new))
        self.touched.add(name)

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        """Python over the copy."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**kept, "PYTHONPATH": str(self.folder / "path"), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300
        )


def named_in(recipe: str, name: str) -> set[str]:
    """The files that a section of CONTRIBUTING.md names, for something called `name`."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index(f"\n## {recipe}\n") :].split("\n## ", 2)[1]
    return {re.sub(r"(?<=[/_])name(?=[/._])", name, path) for path in re.findall(r"`([\w./]+\.\w+)`", section)}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the code with the toy mixer and the toy objective, each by its recipe."""
    made = Copy(tmp_path_factory.mktemp("copy"))
    names = ["ToyConfig", *(f"ToyFor{head}" for head in HEADS), "ToyModel"]
    made.add("modeling/toy/configuration_toy.py", CONFIGURATION)
    made.add("modeling/toy/modeling_toy.py", MIXER + "".join(MODEL_CLASS.format(head=head) for head in HEADS))
    made.add(
        "modeling/toy/__init__.py",
        '"""A toy."""\n\nfrom .configuration_toy import ToyConfig\n'
        f"from .modeling_toy import {', '.join(names[1:])}\n\n__all__ = {names}\n",
    )
    made.change("modeling/__init__.py", '    "wavspa": "WavSpA",\n', '    "wavspa": "WavSpA",\n    "toy": "Toy",\n')
    package = '    "longmix.modeling.wavspa",\n'
    made.change("pyproject.toml", package, package + '    "longmix.modeling.toy",\n')
    made.add("tests/modeling/oracles/toy.py", ORACLE)
    made.add("configs/mixer/toy.yaml", "model: {model_type: toy, hidden_size: 16, num_hidden_layers: 1}\n")
    assert made.touched <= named_in("Adding a mixer", "toy"), "the recipe does not name all that it takes"
    made.touched.clear()
    made.add("trainer/objectives/hinge.py", OBJECTIVE)
    made.change(
        "trainer/settings/objectives.py", "    FORECASTING: ObjectiveRow(\n", f"{ROW}    FORECASTING: ObjectiveRow(\n"
    )
    assert made.touched <= named_in("Adding an objective", "hinge"), "the recipe does not name all that it takes"
    return made


@pytest.mark.full
def test_a_mixer_and_an_objective_that_the_recipes_added_train(copy):
    small = ["--min-length", "10", "--max-length", "40", "--train-samples", "64", "--validation-samples", "16"]
    data = ["data.train=data/train", "data.eval=data/validation", "optim.max_steps=2", "optim.warmup_steps=1"]
    run = ["configs/tasks/listops.yaml", "configs/mixer/toy.yaml", *data, "batch.samples=8", "batch.micro_batch=4"]
    commands = [
        ["prepare", "listops", "--output", "data", *small, "--test-samples", "16"],
        ["train", *run, "data.test=null", "objective.name=hinge", "run.dir=runs/both"],
        ["evaluate", "runs/both/model", "--data", "data/validation"],
    ]
    result = copy.run("-c", RUN, json.dumps(commands))
    assert result.returncode == 0, result.stderr
    assert "train 2/2" in result.stderr and "matthews" in result.stdout
    config = json.loads((copy.folder / "runs" / "both" / "model" / "config.json").read_text())
    assert config["model_type"] == "toy" and config["architectures"] == ["ToyForSequenceClassification"]


@pytest.mark.full
def test_the_acceptance_tests_walk_the_added_mixer(copy):
    result = copy.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/modeling/test_acceptance.py", "-k", "toy")
    assert result.returncode == 0, result.stdout
    assert re.search(r"^\d\d+ passed", result.stdout, re.MULTILINE), result.stdout
