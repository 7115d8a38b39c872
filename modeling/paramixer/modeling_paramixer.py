"""Paramixer: values mixed along a few links of each position, in several factors one after the other.

Labels such as PX-4 are those of docs/mixers/paramixer.md, which says how this differs from the paper and its code.
"""

from typing import ClassVar

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from longmix.kernels import ops

from ..block import Mixer
from ..context import BatchContext
from ..forecasting import MixerForForecasting
from ..heads import MixerForSequenceClassification, MixerForSequencePairClassification, MixerForTokenClassification
from ..language_models import MixerForCausalLM, MixerForMaskedLM
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from .configuration_paramixer import ParamixerConfig
from .links import LinkNetworks, link_offsets
from .values import ValueNetwork

# Of links that re-enter packed documents, on a GPU: see `longmix.kernels.ops.link_mix`.
LONGEST_AMONG_DOCUMENTS = 2**20


class ParamixerBlock(GradientCheckpointingLayer):
    """The block of the paper: the mixer and dropout, without norm, residual and feed-forward (Paramixer, section 3.3).

    As in the published code, the first block's input is dropped a second time after the embeddings' own dropout.
    """

    normalises_embeddings = False
    needs_final_norm = False

    def __init__(self, config: ParamixerConfig, mixer: Mixer):
        super().__init__()
        self.mixer = mixer
        self.input_dropout = nn.Dropout(config.hidden_dropout_prob if mixer.layer_index == 0 else 0.0)
        own = config.value_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob if own is None else own)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); the context is handed to the mixer."""
        hidden_states = self.input_dropout(hidden_states)
        return self.dropout(self.mixer(hidden_states, context))


class Paramixer(Mixer):
    """A g(x) with A = (I + W_{M-1}) ... (I + W_0), each W sparse and computed from the tokens (Paramixer, eqs. 3 to 6).

    Deviations from the paper and its published code:
    - links are modulo each sample's valid length, or that of the row's own document, never the padded length; padded
      rows neither give nor take;
    - by default L = ceil(log2 N) factors, for N = max_position_embeddings, and L + 1 links under CHORD, half as many
      factors and 2 L + 1 links with `symmetric` (PX-1; the paper says log N for both); CDIL takes any odd number of
      links (PX-2) and dilations from 2^0 (PX-3);
    - every factor has a residual, as in the code and not in the equations (PX-4), and the factor m = 0 is applied first
      (PX-7); the networks have two linear layers (PX-5);
    - the value network is as wide as the model, not as the link networks: no bottleneck (`value_hidden_size`);
    - outside the paper's block the links start with weights that keep a stack of blocks well-scaled (PX-9);
    - `symmetric` links for CHORD, whose published links lead forward only, so that what came before is reached by
      wrapping around;
    - causal models link backwards, and links that leave the document are dropped;
    - in blocks and vocabulary the paper's tables differ from its shipped configurations; nothing here depends on either
      (PX-8).

    A is invertible for almost all weights, not for all (PX-6).
    """

    supports_causal = True
    isolates_documents = True
    paper_block = ParamixerBlock

    def __init__(self, config: ParamixerConfig, layer_index: int):
        super().__init__(config, layer_index)
        self.links = LinkNetworks(config)
        self.value = ValueNetwork(config)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """See Mixer. Without embeddings the weights are computed from `hidden_states`."""
        value = self.value(keep_valid(hidden_states, context.mask))
        return self._mix(value, hidden_states, context)

    def mixing_matrix(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The matrix A of these tokens, (B, 1, N, N), zero in rows and columns of padding.

        The mask may have any dtype.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        identity = torch.eye(hidden_states.shape[1], dtype=hidden_states.dtype, device=hidden_states.device)
        identity = identity.expand(len(hidden_states), -1, -1)
        return self._mix(identity, hidden_states, context.checked()).unsqueeze(1)

    def _mix(self, value: torch.Tensor, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """A times value (B, N, ...)."""
        own = context.embeddings is None or self.config.weights_from == "input"
        weights = self.links(keep_valid(hidden_states if own else context.embeddings, context.mask))
        offsets = context.once(("link offsets", value.device), lambda: link_offsets(self.config, value.device))
        wrap = not self.config.is_causal
        if wrap and context.document_ids is not None and value.device.type != "cpu":
            longest = self.config.longest_link
            if longest >= LONGEST_AMONG_DOCUMENTS:
                raise ValueError(
                    f"links lead {longest} positions far; allowed with packed documents on a GPU: less than "
                    f"{LONGEST_AMONG_DOCUMENTS} (configure fewer {self.config.lengthens_links})"
                )
        return ops.link_mix(value, weights, offsets, context.lengths, wrap, context.document_ids)


# The frame's models around this mixer. Written out, one class each: config.json and saved code name them.


class ParamixerPreTrainedModel(MixerPreTrainedModel):
    """Base of the Paramixer models."""

    config_class = ParamixerConfig
    mixer_class = Paramixer
    _no_split_modules: ClassVar[list[str]] = [*MixerPreTrainedModel._no_split_modules, "ParamixerBlock"]


class ParamixerModel(ParamixerPreTrainedModel, MixerModel):
    """See MixerModel."""


class ParamixerForMaskedLM(ParamixerPreTrainedModel, MixerForMaskedLM):
    """See MixerForMaskedLM."""

    encoder_class = ParamixerModel


class ParamixerForCausalLM(ParamixerPreTrainedModel, MixerForCausalLM):
    """See MixerForCausalLM."""

    encoder_class = ParamixerModel


class ParamixerForSequenceClassification(ParamixerPreTrainedModel, MixerForSequenceClassification):
    """See MixerForSequenceClassification."""

    encoder_class = ParamixerModel


class ParamixerForSequencePairClassification(ParamixerPreTrainedModel, MixerForSequencePairClassification):
    """See MixerForSequencePairClassification."""

    encoder_class = ParamixerModel


class ParamixerForTokenClassification(ParamixerPreTrainedModel, MixerForTokenClassification):
    """See MixerForTokenClassification."""

    encoder_class = ParamixerModel


class ParamixerForForecasting(ParamixerPreTrainedModel, MixerForForecasting):
    """See MixerForForecasting."""

    encoder_class = ParamixerModel
