"""FLT: linear attention whose features carry a learnable mask of relative positions.

Labels such as FL-3 are those of docs/mixers/flt.md, which says how and why this differs from the paper.
"""

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels import ops

from ..attention.features import orthogonal_projection, positive_log_features
from ..block import Mixer, PostNormBlock, buffer_generator
from ..heads import (
    MixerForCausalLM,
    MixerForMaskedLM,
    MixerForSequenceClassification,
    MixerForSequencePairClassification,
    MixerForTokenClassification,
)
from ..masking import keep_valid
from ..model import MixerModel, MixerPreTrainedModel
from .configuration_flt import FLTConfig
from .spectral_mask import SpectralMask

# Added to features behind a ReLU: a query for which all of them are zero sees the mean of the values.
RELU_FLOOR = 1e-3


class FLT(Mixer):
    """softmax(N^ + Q K^T / sqrt d) V estimated by m random features at linear cost (FLT, algorithm 1).

    Deviations from the paper, besides those of `SpectralMask`:
    - the features of the concatenation [phi(r_i), q_i d^(-1/4)] are those of the content times those of the position;
      in the logarithm a bias that all samples share, and its constant norm cancels (FL-3). The result is the same;
    - the stabiliser is the running maximum of the valid keys, which cancels exactly: no epsilon, no look into the
      future or at padding;
    - frequencies and projections are drawn once and kept; projections are orthogonal blocks (FL-8);
    - `feature_kind="relu"` puts the position into the ReLU beside the content, as the paper does for images: extra
      inputs, no mask in an exponent (FL-9); the features have a floor of 1e-3.
    """

    supports_causal = True
    isolates_documents = True
    paper_block = PostNormBlock

    def __init__(self, config: FLTConfig, layer_index: int):
        super().__init__(config, layer_index)
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mask = SpectralMask(config, layer_index)
        shape = (config.num_random_features, 2 * config.num_frequencies + width // self.heads)
        if config.feature_kind == "relu":
            self.feature_projection = nn.Parameter(torch.empty(shape))
        else:
            self.register_buffer("feature_projection", torch.empty(shape).to(torch.float32))
        self.reset()

    def reset(self) -> None:
        """Draw the projection of positions and content, (m, 2 r + d)."""
        generator = buffer_generator(self.config, self.layer_index, "projection")
        init.copy_(self.feature_projection, orthogonal_projection(*self.feature_projection.shape, generator))

    @classmethod
    def shared_module(cls, config: FLTConfig) -> nn.Module | None:
        """The mask of all layers (D5)."""
        return SpectralMask(config) if config.share_mask else None

    def use_shared(self, module: nn.Module) -> None:
        """See Mixer."""
        del self.mask
        # Behind torch's back: it is the encoder's sub-module, and stands in the state once.
        self.__dict__["mask"] = module

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Mixer. Documents see only themselves, and each is counted from its own start.

        The mask is the same wherever a document starts, but an estimate of it by m features is not (FL-6).
        """
        query, key, value = self._project(hidden_states, attention_mask)
        mixed = self._mix(query, key, value, attention_mask, document_ids, coordinates)
        return keep_valid(self.output(mixed.transpose(1, 2).flatten(2)), attention_mask)

    def mixing_matrix(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weights that a query's result gives to the values, (B, H, N, N); rows sum to 1, zero on padding."""
        query, key, _ = self._project(hidden_states, attention_mask)
        batch, _, positions, _ = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        identity = torch.eye(positions, dtype=wide, device=query.device).expand(batch, self.heads, -1, -1)
        return self._mix(query, key, identity, attention_mask, document_ids, coordinates)

    def _project(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, N, D) -> queries, keys and values (B, H, N, d)."""
        projected = self.projection(keep_valid(hidden_states, attention_mask))
        return projected.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def _mix(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        coordinates: torch.Tensor | None,
    ) -> torch.Tensor:
        """Queries and keys (B, H, N, d), values (B, H, N, c) -> (B, H, N, c), zero on padding."""
        coordinates = self._positions(coordinates, attention_mask, document_ids)
        query_features, key_features = self._features(query, key, coordinates)
        operation = ops.linear_attention if self.config.feature_kind == "relu" else ops.feature_attention
        lengths = None if attention_mask is None else attention_mask.sum(1)
        causal = self.config.is_causal
        return operation(query_features, key_features, value, lengths, causal=causal, document_ids=document_ids)

    def _features(
        self, query: torch.Tensor, key: torch.Tensor, coordinates: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of queries and keys behind a ReLU, else their logarithms: (B, H, N, m), in fp32 or wider."""
        wide = torch.promote_types(query.dtype, torch.float32)
        projection = self.feature_projection.to(wide)
        for_positions, for_content = projection.split([2 * self.config.num_frequencies, query.shape[-1]], dim=1)
        with torch.autocast(query.device.type, enabled=False):
            biases = self.mask(coordinates, query.shape[2], for_positions)
            features = []
            for content, bias in zip((query, key), biases, strict=True):
                if self.config.feature_kind == "relu":
                    scaled = content.to(wide) * content.shape[-1] ** -0.25
                    features.append(functional.relu(scaled @ for_content.T + bias) + RELU_FLOOR)
                else:
                    features.append(positive_log_features(content, for_content) + bias)
        return tuple(features)

    def _positions(
        self, coordinates: torch.Tensor | None, attention_mask: torch.Tensor | None, document_ids: torch.Tensor | None
    ) -> torch.Tensor | None:
        """What the mask takes as coordinates, (B, N, l), zero on padding; None: the indices, alike in all samples."""
        dimensions = self.config.coordinate_dimensions
        given = None if coordinates is None else tuple(coordinates.shape)
        if (given is None) != (dimensions == 0) or (given is not None and given[2:] != (dimensions,)):
            allowed = f"('B', 'N', {dimensions})" if dimensions else "None"
            raise ValueError(f"coordinates have shape {given}; allowed: {allowed}, of coordinate_dimensions")
        if coordinates is not None:
            return keep_valid(coordinates, attention_mask)
        return None if document_ids is None else positions_in_documents(document_ids)[:, :, None]


def positions_in_documents(document_ids: torch.Tensor) -> torch.Tensor:
    """(B, N), equal on the tokens of one document -> (B, N) int64, counted from each document's first token."""
    index = torch.arange(document_ids.shape[1], device=document_ids.device)
    follows = functional.pad(document_ids[:, 1:] == document_ids[:, :-1], (1, 0))[:, : len(index)]
    return index - torch.where(follows, 0, index).cummax(1).values


class FLTPreTrainedModel(MixerPreTrainedModel):
    """What the FLT models share."""

    config_class = FLTConfig
    mixer_class = FLT


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
