"""Configuration of the softmax-attention baseline."""

from typing import Any, ClassVar

from ..configuration import MixerConfig


class TransformerConfig(MixerConfig):
    """Softmax attention; see MixerConfig for the shared fields. Its positions are rotary ones unless it says otherwise.

    Args:
        attention_probs_dropout_prob: dropout of the attention weights.
    """

    model_type = "transformer"
    no_rope_because: ClassVar[str | None] = None
    earlier_defaults: ClassVar[dict[str, Any]] = {"position_embedding_type": "learned"}

    position_embedding_type: str = "rope"
    attention_probs_dropout_prob: float = 0.0

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require("attention_probs_dropout_prob", 0 <= self.attention_probs_dropout_prob < 1, "0 <= probability < 1")
