"""WavSpA: attention of any kind, among the coefficients of a transformed sequence.

Labels such as WS-2 are those of docs/mixers/wavspa.md, which says how and why this differs from the paper and its code.
"""

import copy
from typing import ClassVar

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ..attention import make_attention
from ..block import FeedForward, Mixer
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForMaskedLM
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from ..wide_sums import LayerNorm
from .band_attention import attend_in_bands
from .configuration_wavspa import WavSpAConfig
from .spaces import WaveletSpace, make_space


class WavSpABlock(GradientCheckpointingLayer):
    """h = x + mixer(norm(x)), then h + feed_forward(h): the block of the published code, on embeddings as they are.

    Figure 1 of the paper normalises after each sum; its code does not, and has one normalisation in a block (WS-10).
    """

    normalises_embeddings = False
    needs_final_norm = True

    def __init__(self, config: WavSpAConfig, mixer: Mixer):
        super().__init__()
        self.mixer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mixer = mixer
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); the context is handed to the mixer."""
        mixed = self.mixer(self.mixer_norm(hidden_states), context)
        hidden_states = hidden_states + mixed
        return hidden_states + self.feed_forward(self.dropout(hidden_states))


class WavSpA(Mixer):
    """Transform the sequence, attend among the coefficients of each band, transform back (WavSpA, eqs. 1 to 3).

    Deviations from the paper and its published code:
    - transforms are periodic in each sample's valid length, rounded up to a multiple of 2^levels by zeros, where the
      code reflects the padded sequence at its ends and gets up to 2.8 times as many coefficients; each band has its own
      mask; so padding takes no part, and there are exactly as many coefficients as rows;
    - every channel's high-pass taps are made from its own low-pass taps; the code reverses the channels too, and its
      transform of different channels cannot be undone (WS-2);
    - detail bands are attended in as well; the code's encoder for language overwrites them by the approximation (WS-3);
    - the paper's transform of the channels as well is a switch, `two_dimensional` (WS-4, WS-7);
    - `attention="performer"` has positive random features as in the paper; `performer_features="relu"` is the code's,
      which has none (WS-5);
    - eq. 9 with its missing plus sign, circular at the end (WS-6);
    - any number of samples, channels and rows, where the code fails for one sample or one channel and reflects short
      rows several times (WS-9);
    - filters longer than a band wrap around as often as needed, where the code cuts them off (WS-11);
    - the window of `windowed` attention shrinks with the bands, so that it spans the same tokens in all of them.
    """

    paper_block = WavSpABlock

    def __init__(self, config: WavSpAConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.space = make_space(config)
        self.attentions = nn.ModuleList()
        for band, positions in enumerate(self._attention_positions()):
            self.attentions.append(
                make_attention(
                    config.attention, self._band_config(band), layer_index, positions, band, width=self.space.width
                )
            )

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """See Mixer."""
        batch, positions, _ = hidden_states.shape
        if hidden_states.numel() == 0:
            return hidden_states  # Fourier transforms refuse empty tensors
        taps = self.space(hidden_states.dtype)  # there and back
        bands, masks = self.space.analyse(keep_valid(hidden_states, context.mask), context.lengths, taps)
        stacked, shapes = self.space.stacked(), self.space.shapes(batch, positions)
        attentions = [self.attentions[0]] * sum(stacked) if self.config.share_bands else list(self.attentions)
        bands = attend_in_bands(attentions, stacked, shapes, bands, masks, context)
        return keep_valid(self.space.synthesise(bands, batch, positions, context.lengths, taps), context.mask)

    def resize_positions(self) -> None:
        """Make room in the bands for config.max_position_embeddings."""
        for attention, positions in zip(self.attentions, self._attention_positions(), strict=True):
            attention.extend(positions)

    def _attention_positions(self) -> list[int]:
        """Longest sequence of coefficients that each attention meets."""
        positions = self.space.band_positions(self.config.max_position_embeddings)
        return [max(positions)] if self.config.share_bands else positions

    def _band_config(self, band: int) -> WavSpAConfig:
        """The configuration with the window of one band, in coefficients; that of the finest if bands share."""
        config = copy.copy(self.config)
        if isinstance(self.space, WaveletSpace):
            depth = 1 if config.share_bands else min(config.levels, config.levels + 1 - band)
            # A window of less than 2 has no neighbours.
            config.attention_window = max(min(config.attention_window, 2), config.attention_window >> depth)
        return config


# The frame's models around this mixer. Written out, one class each: config.json and saved code name them.


class WavSpAPreTrainedModel(MixerPreTrainedModel):
    """Base of the WavSpA models."""

    config_class = WavSpAConfig
    mixer_class = WavSpA
    no_weight_decay: ClassVar[tuple[str, ...]] = ("mixer.space.",)
    _no_split_modules: ClassVar[list[str]] = [*MixerPreTrainedModel._no_split_modules, "WavSpABlock"]


class WavSpAModel(WavSpAPreTrainedModel, MixerModel):
    """See MixerModel."""


class WavSpAForMaskedLM(WavSpAPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = WavSpAModel


class WavSpAForSequenceClassification(WavSpAPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = WavSpAModel


class WavSpAForTokenClassification(WavSpAPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = WavSpAModel


class WavSpAForSequencePairClassification(WavSpAPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = WavSpAModel


class WavSpAForForecasting(WavSpAPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting."""

    encoder_class = WavSpAModel
