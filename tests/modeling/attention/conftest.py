"""A configuration with the fields of every kind of attention, and modules made from it."""

import pytest
import torch

from longmix.modeling import MixerConfig
from longmix.modeling.attention import make_attention


class AttentionConfig(MixerConfig):
    """The fields that the attention family reads."""

    attention_probs_dropout_prob: float = 0.0
    performer_features: str = "positive"
    num_random_features: int | None = None
    linformer_rank: int = 3
    attention_window: int = 5


@pytest.fixture
def make():
    """make(kind, positions=70, layer_index=0, names=(), **fields) -> a module in evaluation mode, with random biases.

    kind: one of ATTENTIONS, or "relu" for performer with ReLU features.
    """

    def build(kind, positions=70, layer_index=0, names=(), **fields):
        torch.manual_seed(0)
        if kind == "relu":
            kind, fields = "performer", {"performer_features": "relu", **fields}
        config = AttentionConfig(**{"hidden_size": 16, "num_attention_heads": 2, **fields})
        module = make_attention(kind, config, layer_index, positions, *names).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return module

    return build
