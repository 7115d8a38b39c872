"""Tiny models of every type."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

import longmix.modeling

TINY = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}
# oracles/MODEL_TYPE.py holds all that the tests know of a mixer: its smallest fields (TINY), the fields of every way
# through its code (VARIANTS; what each must do stands in test_acceptance.py) and its equations (oracle).
MIXERS = {
    model_type: runpy.run_path(str(Path(__file__).parent / "oracles" / f"{model_type}.py"))
    for model_type in longmix.modeling.MODEL_TYPES
}
VARIANTS = {
    f"{model_type}-{name}" if name else model_type: (model_type, fields)
    for model_type, mixer in MIXERS.items()
    for name, fields in {"": {}, **mixer["VARIANTS"]}.items()
}
# A grid of variants names those that prove no more than the others do.
LEFT_OUT = {f"{model_type}-{name}" for model_type, mixer in MIXERS.items() for name in mixer.get("LEFT_TO_FULL", ())}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.full] * (name in LEFT_OUT)) for name in VARIANTS])
def variant(request):
    """(model type, fields) of every variant in turn."""
    return VARIANTS[request.param]


@pytest.fixture(scope="session")
def load_oracle():
    """load_oracle(model_type) -> oracle(mixer, x (N, D), ...) of oracles/MODEL_TYPE.py."""
    return lambda model_type: MIXERS[model_type]["oracle"]


@pytest.fixture(params=longmix.modeling.MODEL_TYPES)
def model_type(request):
    """Every model type in turn."""
    return request.param


@pytest.fixture
def make_config():
    """make_config(model_type, **fields) -> a tiny configuration."""

    def make(model_type, **fields):
        return AutoConfig.for_model(model_type, **{**TINY, **MIXERS[model_type]["TINY"], **fields})

    return make


@pytest.fixture
def make_model(make_config):
    """make_model(model_type, auto_class=AutoModel, seed=0, **fields) -> a tiny model in evaluation mode.

    Its parameters are large enough for every part of it to show.
    """

    def make(model_type, auto_class=AutoModel, seed=0, **fields):
        torch.manual_seed(seed)
        model = auto_class.from_config(make_config(model_type, **{"initializer_range": 0.3, **fields}))
        return model.eval()

    return make


@pytest.fixture
def make_mixer(make_config):
    """make_mixer(model_type, **fields) -> one mixer in evaluation mode with random biases and gains."""

    def make(model_type, layer_index=0, **fields):
        torch.manual_seed(0)
        config = make_config(model_type, **fields)
        mixer_class = AutoModel._model_mapping[type(config)].mixer_class
        mixer = mixer_class(config, layer_index).eval()
        with torch.no_grad():
            for parameter in mixer.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return mixer

    return make


@pytest.fixture
def batch():
    """batch(lengths, positions) -> input ids and mask, right-padded with ids of real words."""

    def make(lengths, positions, seed=0):
        generator = torch.Generator().manual_seed(seed)
        input_ids = torch.randint(0, TINY["vocab_size"], (len(lengths), positions), generator=generator)
        mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
        return input_ids, mask

    return make


TWO_RANKS = """
import os, sys
from torch import distributed
{before}
other = os.fork()
rank = 0 if other else 1
distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
{on_each}
distributed.destroy_process_group()
if other and os.waitpid(other, 0)[1]:
    sys.exit("rank 1 failed")
"""


@pytest.fixture
def two_ranks(tmp_path):
    """two_ranks(before, on_each) runs `before` in a new process, then `on_each` in it and a fork, as `rank` 0 and 1."""

    def run(before, on_each):
        code = TWO_RANKS.format(before=before, on_each=on_each)
        process = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True, timeout=240
        )
        assert process.returncode == 0, process.stderr

    return run
