"""Softmax attention, the baseline of every comparison."""

import torch

from ..attention import SoftmaxAttention
from ..block import Mixer, PostNormBlock
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForCausalLM, MixerForMaskedLM
from ..model import MixerModel, MixerPreTrainedModel
from .configuration_transformer import TransformerConfig


class SoftmaxMixer(Mixer):
    """Softmax attention over the valid tokens of the same document; see SoftmaxAttention."""

    supports_causal = True
    isolates_documents = True
    paper_block = PostNormBlock

    def __init__(self, config: TransformerConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.attention = SoftmaxAttention(config)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """See Mixer."""
        return self.attention(hidden_states, context)

    def mixing_matrix(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The attention weights, (B, H, N, N), zero on padding; the mask may have any dtype.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        return self.attention.weights(hidden_states, context.checked())


# The frame's models around this mixer. Written out, one class each: config.json and saved code name them.


class TransformerPreTrainedModel(MixerPreTrainedModel):
    """Base of the Transformer models."""

    config_class = TransformerConfig
    mixer_class = SoftmaxMixer


class TransformerModel(TransformerPreTrainedModel, MixerModel):
    """See MixerModel."""


class TransformerForMaskedLM(TransformerPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = TransformerModel


class TransformerForSequenceClassification(TransformerPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = TransformerModel


class TransformerForTokenClassification(TransformerPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = TransformerModel


class TransformerForSequencePairClassification(TransformerPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = TransformerModel


class TransformerForCausalLM(TransformerPreTrainedModel, MixerForCausalLM):
    """See MixerForCausalLM."""

    encoder_class = TransformerModel


class TransformerForForecasting(TransformerPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting."""

    encoder_class = TransformerModel
