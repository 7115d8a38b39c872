"""Configurations check themselves and survive a round trip."""

import subprocess
import sys

import pytest
from transformers import AutoConfig

import longmix.modeling


def test_defaults_are_derived():
    config = AutoConfig.for_model("s3attention", hidden_size=256, num_hidden_layers=4)
    assert (config.num_attention_heads, config.intermediate_size, config.n_fft) == (4, 1024, 512)
    assert AutoConfig.for_model("transformer").num_attention_heads == 12
    assert AutoConfig.for_model("transformer", hidden_size=40).num_attention_heads == 1


def test_every_field_is_saved(model_type, make_config, tmp_path):
    config = make_config(model_type, hidden_size=96, num_attention_heads=12, buffer_seed=7, num_labels=5)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    assert loaded.num_labels == 5
    for name in config.own_fields():
        assert getattr(loaded, name) == getattr(config, name)
        assert f'"{name}":' in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("vocab_size", 0, "at least 1"),
        ("hidden_size", -4, "at least 1"),
        ("hidden_size", 15, "even"),
        ("hidden_size", "256", "int"),
        ("num_hidden_layers", True, "int"),
        ("num_attention_heads", 3, "divisors of hidden_size"),
        ("intermediate_size", 0, "at least 1"),
        ("hidden_act", "gleu", "gelu"),
        ("max_position_embeddings", 0, "at least 1"),
        ("position_embedding_type", "rotary", "none, sinusoidal, learned, rope, gru"),
        ("type_vocab_size", -1, "at least 0"),
        ("hidden_dropout_prob", 1.5, "0 <= probability < 1"),
        ("classifier_dropout", -0.1, "0 <= probability < 1"),
        ("classifier_pooling", "max", "mean, first"),
        ("pad_token_id", 60, "vocab_size"),
        ("block_style", "postnorm", "prenorm, paper"),
        ("input_channels", 0, "null"),
        ("buffer_seed", 0.5, "int"),
        ("layer_norm_eps", 0, "above 0"),
        ("layer_norm_eps", float("inf"), "finite"),
        ("initializer_range", float("inf"), "finite"),
    ],
)
def test_mistakes(field, value, allowed, make_config):
    others = {"num_attention_heads": 1} if field == "hidden_size" else {}
    others.update({"position_embedding_type": "sinusoidal"} if value == 15 else {})
    with pytest.raises(ValueError, match=rf"{field} is .*{value}.*allowed: .*{allowed}"):
        make_config("transformer", **{**others, field: value})


def test_an_unknown_problem_type_is_refused(make_config):
    # Earlier versions of transformers do so before us, in other words.
    with pytest.raises(Exception, match=r"problem_type.*classes.*regression.*multi_label_classification"):
        make_config("transformer", problem_type="classes")


def test_integers_pass_for_floats(make_config):
    assert make_config("transformer", hidden_dropout_prob=0).hidden_dropout_prob == 0


def test_a_changed_configuration_is_checked_by_the_model(model_type, make_model):
    config = make_model(model_type).config
    config.num_attention_heads = 5
    with pytest.raises(ValueError, match="num_attention_heads is 5"):
        longmix.modeling.transformer.TransformerModel(config)


def test_import_needs_neither_deepspeed_nor_triton():
    code = (
        "import sys; sys.modules['deepspeed'] = sys.modules['triton'] = None\n"
        "import longmix.modeling\n"
        "from transformers import AutoConfig, AutoModel\n"
        "AutoModel.from_config(AutoConfig.for_model('s3attention', hidden_size=64, vocab_size=9))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
