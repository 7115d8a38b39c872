"""Configuration of the softmax-attention baseline."""

from ..configuration import MixerConfig


class TransformerConfig(MixerConfig):
    """Softmax attention; see MixerConfig for the shared fields.

    Args:
        attention_probs_dropout_prob: dropout of the attention weights.
    """

    model_type = "transformer"

    attention_probs_dropout_prob: float = 0.0

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require("attention_probs_dropout_prob", 0 <= self.attention_probs_dropout_prob < 1, "0 <= probability < 1")
