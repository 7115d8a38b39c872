"""FLT: linear attention whose features carry a learnable mask of relative positions.

Labels such as FL-3 are those of docs/mixers/flt.md, which says how and why this differs from the paper.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from ..block import Mixer, PostNormBlock
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForCausalLM, MixerForMaskedLM
from ..model import MixerModel, MixerPreTrainedModel
from .attention import SpectralAttention, columns_of
from .configuration_flt import FLTConfig
from .spectral_mask import SpectralMask


class FLT(Mixer):
    """Attention under a learnable mask of relative positions at linear cost; see SpectralAttention and SpectralMask.

    The paper says nothing of the block of its language model; that of the Transformer stands for it.
    """

    supports_causal = True
    isolates_documents = True
    paper_block = PostNormBlock

    def __init__(self, config: FLTConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.attention = SpectralAttention(config, layer_index)

    @classmethod
    def shared_module(cls, config: FLTConfig) -> nn.Module | None:
        """The mask of all layers (D5)."""
        return SpectralMask(config) if config.share_mask else None

    @classmethod
    def share(
        cls, mixers: Sequence[Mixer], hidden_states: torch.Tensor, context: BatchContext
    ) -> Sequence[tuple[torch.Tensor, ...]] | None:
        """The mask's waves, and what each layer multiplies them with; None: layers make the latter, or both."""
        if not SpectralAttention.shares_columns(mixers[0].config):
            return None
        waves, factors = context.shared
        return [(waves, columns) for columns in columns_of([mixer.attention for mixer in mixers], factors)]

    def use_shared(self, module: nn.Module) -> None:
        """See Mixer."""
        self.attention.use_mask(module)

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


class FLTPreTrainedModel(MixerPreTrainedModel):
    """Base of the FLT models."""

    config_class = FLTConfig
    mixer_class = FLT
    no_weight_decay: ClassVar[tuple[str, ...]] = ("shared.", "attention.mask.", "attention.neighbours.")


class FLTModel(FLTPreTrainedModel, MixerModel):
    """See MixerModel."""


class FLTForMaskedLM(FLTPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = FLTModel


class FLTForCausalLM(FLTPreTrainedModel, MixerForCausalLM):
    """See MixerForCausalLM."""

    encoder_class = FLTModel


class FLTForSequenceClassification(FLTPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = FLTModel


class FLTForSequencePairClassification(FLTPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = FLTModel


class FLTForTokenClassification(FLTPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = FLTModel


class FLTForForecasting(FLTPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting."""

    encoder_class = FLTModel
