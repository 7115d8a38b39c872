"""The attention family: softmax attention and its cheaper relatives, for WavSpA's bands and as baselines."""

from ..configuration import MixerConfig
from .base import Attention
from .features import orthogonal_projection
from .linear import LinearAttention, PerformerAttention, ReluPerformerAttention
from .linformer import LinformerAttention
from .softmax import SoftmaxAttention
from .windowed import WindowedAttention

ATTENTIONS = ("softmax", "linear", "performer", "linformer", "windowed")
PERFORMER_FEATURES = ("positive", "relu")

__all__ = [
    "ATTENTIONS",
    "PERFORMER_FEATURES",
    "Attention",
    "LinearAttention",
    "LinformerAttention",
    "PerformerAttention",
    "ReluPerformerAttention",
    "SoftmaxAttention",
    "WindowedAttention",
    "make_attention",
    "orthogonal_projection",
]


def make_attention(
    kind: str, config: MixerConfig, layer_index: int, positions: int, *names: str | int, width: int | None = None
) -> Attention:
    """An attention module of one kind: forward(hidden_states (B, N, D), context) -> (B, N, D), see Attention.

    Args:
        kind: one of ATTENTIONS.
        config: read are num_attention_heads, attention_probs_dropout_prob (softmax, linformer, windowed),
            performer_features (one of PERFORMER_FEATURES), num_random_features (of positive features; None:
            int(d ln d), at least 1), linformer_rank and attention_window.
        layer_index: of the layer, for the random buffers.
        positions: longest N that the module will see; where parameters are tied to it, `extend(positions)` grows them
            (not `resize_positions`, which a model calls on every module, without an argument).
        names: tell apart several modules of one layer, for the random buffers.
        width: channels that come in and go out; None: hidden_size.

    Raises:
        ValueError: an unknown kind.
    """
    if kind == "softmax":
        return SoftmaxAttention(config, width)
    if kind == "linear":
        return LinearAttention(config, width)
    if kind == "performer" and config.performer_features == "relu":
        return ReluPerformerAttention(config, width)
    if kind == "performer":
        return PerformerAttention(config, layer_index, *names, width=width)
    if kind == "linformer":
        return LinformerAttention(config, positions, width)
    if kind == "windowed":
        return WindowedAttention(config, width)
    raise ValueError(f"attention is {kind!r}; allowed: {', '.join(ATTENTIONS)}")
