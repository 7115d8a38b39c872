"""The operations of a model, counted without computing."""

from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig

from longmix.kernels import selection
from longmix.modeling import MixerConfig
from longmix.trainer.models.flops import Flops, count_flops

CONFIGURATIONS = Path(__file__).resolve().parents[3] / "configs"


def configuration(mixer: str, **fields) -> MixerConfig:
    model = yaml.safe_load((CONFIGURATIONS / "model" / f"{mixer}_tiny.yaml").read_text(encoding="utf-8"))["model"]
    return AutoConfig.for_model(**{**model, "vocab_size": 1000, **fields})


@pytest.mark.parametrize("layers", [1, 2, 7])
@pytest.mark.parametrize("positions", [96, 128])
def test_a_transformer_takes_its_matrices_and_all_pairs(layers, positions):
    config = configuration("transformer", num_hidden_layers=layers)
    width, inner = config.hidden_size, config.intermediate_size
    flops = count_flops(config, AutoModelForMaskedLM, positions)
    # Four matrices of the mixer and two of the feed-forward layer; scores and their weighted sums.
    assert flops.per_position == layers * (8 * width**2 + 4 * width * inner + 4 * positions * width)
    assert flops.per_item == 2 * width**2 + 2 * width * config.vocab_size


def test_another_library_s_model_is_counted():
    config = BertConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=256)
    flops = count_flops(config, AutoModelForSequenceClassification, 32)
    pooler = 2 * 64**2 / 32  # once for each sequence
    assert flops.per_position == 4 * (8 * 64**2 + 4 * 64 * 256 + 4 * 32 * 64) + pooler


def test_training_takes_three_times_as_many():
    assert Flops(10, 4).of_training(7, 2) == 3 * (70 + 8)


@pytest.mark.full
@pytest.mark.parametrize("mixer", ["converter", "flt", "paramixer", "s3attention", "wavspa"])
def test_a_mixer_takes_what_its_layers_compute(mixer):
    """The same operations are counted when a sample is really computed, by plain PyTorch."""
    config = configuration(mixer, num_hidden_layers=3)
    model = AutoModelForMaskedLM.from_config(config).eval()
    with selection.plain(), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.base_model(inputs_embeds=torch.randn(1, 64, config.hidden_size))
    flops = count_flops(config, AutoModelForMaskedLM, 64)
    assert flops.per_position == pytest.approx(counter.get_total_flops() / 64)
    assert flops.per_item > 0


def test_counting_changes_no_choice_and_draws_nothing():
    before, state = selection.implementation("link_mix", "cpu"), torch.get_rng_state()
    count_flops(configuration("paramixer"), AutoModelForMaskedLM, 64)
    assert selection.implementation("link_mix", "cpu") == before
    assert torch.equal(torch.get_rng_state(), state)
