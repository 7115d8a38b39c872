"""The random models beside the pre-trained ones of the GLUE table."""

import math

import pytest
import torch
import transformers

import longmix.modeling  # noqa: F401  registers the model types


@pytest.fixture
def pretrained(tmp_path):
    config = transformers.AutoConfig.for_model(
        "transformer",
        vocab_size=40,
        max_position_embeddings=16,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(0.3 * number, 1.0 + number)
    model.save_pretrained(tmp_path / "pretrained")
    (tmp_path / "pretrained" / "tokenizer.json").write_text("{}")
    return tmp_path / "pretrained"


def loaded(folder):
    return transformers.AutoModelForMaskedLM.from_pretrained(folder)


def test_a_control_at_scale_has_the_mean_and_deviation_of_every_tensor(script, pretrained, tmp_path):
    controls = script("glue_table.controls")
    controls.make(pretrained, "random at scale", 0, tmp_path / "scaled")
    before, after = loaded(pretrained), loaded(tmp_path / "scaled")
    assert after.get_output_embeddings().weight is after.get_input_embeddings().weight
    for (name, first), second in zip(before.named_parameters(), after.parameters(), strict=True):
        error = 5 * first.std().item() / math.sqrt(first.numel())
        assert second.mean().item() == pytest.approx(first.mean().item(), abs=error), name
        assert second.std().item() == pytest.approx(first.std().item(), rel=5 / math.sqrt(2 * first.numel())), name
        assert not torch.isclose(first, second).all(), name
    assert (tmp_path / "scaled" / "tokenizer.json").read_text() == "{}"


def test_a_random_control_begins_as_a_new_model_and_every_draw_is_another(script, pretrained, tmp_path):
    controls = script("glue_table.controls")
    state = torch.get_rng_state()
    for draw in (0, 1):
        controls.make(pretrained, "random", draw, tmp_path / f"random-{draw}")
    assert torch.equal(torch.get_rng_state(), state)
    first, second = loaded(tmp_path / "random-0"), loaded(tmp_path / "random-1")
    weights = [model.get_input_embeddings().weight for model in (first, second)]
    assert not torch.equal(*weights) and weights[0].std().item() == pytest.approx(0.02, rel=0.2)
    # Not made twice: fine-tuning knows a start by its contents.
    stamp = (tmp_path / "random-0" / "model.safetensors").stat().st_mtime_ns
    controls.make(pretrained, "random", 0, tmp_path / "random-0")
    assert (tmp_path / "random-0" / "model.safetensors").stat().st_mtime_ns == stamp
