"""A model folder to spoil."""

import pytest
from transformers import BertConfig, BertForMaskedLM


@pytest.fixture
def model(tmp_path):
    """A small model folder of transformers."""
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=96)
    BertForMaskedLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"
