"""Linear attention whose features carry a mask of relative positions."""

import functools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels import ops

from ..attention import Attention, orthogonal_projection
from ..block import buffer_generator
from ..context import BatchContext
from ..rotary import positions_in_documents
from .configuration_flt import FLTConfig
from .neighbours import Neighbours
from .spectral_mask import SpectralMask, scaled_columns
from .two_readers import heads_for_two

# Added to features behind a ReLU: a query for which all of them are zero sees the mean of the values.
RELU_FLOOR = 1e-3


class SpectralAttention(Attention):
    """softmax(N^ + Q K^T / sqrt d) V estimated by m random features at linear cost (FLT, algorithm 1).

    Deviations from the paper, besides those of `SpectralMask`:
    - the features of a position are pairs of real numbers, so that the projection has 2 r + d columns, where the paper
      counts m + r (FL-1);
    - the features of the concatenation [phi(r_i), q_i d^(-1/4)] are those of the content times those of the position;
      in the logarithm a bias that all samples share, and its constant norm cancels (FL-3). The result is the same;
    - the stabiliser is the running maximum of the valid keys, which cancels exactly: no epsilon, no look into the
      future or at padding;
    - frequencies and projections are drawn once and kept; projections are orthogonal blocks (FL-8);
    - `feature_kind="relu"` puts the position into the ReLU beside the content, as the paper does for images: extra
      inputs, no mask in an exponent (FL-9); the features have a floor of 1e-3;
    - documents are counted from their own start: the mask is the same wherever one stands, but an estimate of it by m
      features is not (FL-6);
    - with `exact_reach` the nearest tokens are attended to exactly as well (FL-10), see Neighbours.
    """

    def __init__(self, config: FLTConfig, layer_index: int):
        super().__init__(config)
        self.layer_index = layer_index
        self.mask = SpectralMask(config, layer_index)
        self.neighbours = Neighbours(config) if config.exact_reach else None
        shape = (config.num_random_features, 2 * config.num_frequencies + config.hidden_size // self.heads)
        if config.feature_kind == "relu":
            self.feature_projection = nn.Parameter(torch.empty(shape))
        else:
            self.register_buffer("feature_projection", torch.empty(shape).to(torch.float32))
        self.reset()

    def reset(self) -> None:
        """Draw the projection of positions and content, (m, 2 r + d)."""
        generator = buffer_generator(self.config, self.layer_index, "projection")
        width = 2 * self.config.num_frequencies + self.config.hidden_size // self.heads
        init.copy_(self.feature_projection, orthogonal_projection(self.config.num_random_features, width, generator))

    def use_mask(self, mask: SpectralMask) -> None:
        """Take a mask that another module owns in place of the own one."""
        del self.mask
        # Behind torch's back: it is the encoder's sub-module, and stands in the state once.
        self.__dict__["mask"] = mask

    def weights(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The matrices that `forward` applies to the values, (B, H, N, N); rows sum to 1, zero on padding."""
        query, key, _ = self.project(hidden_states, context.mask)
        batch, _, positions, _ = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        identity = torch.eye(positions, dtype=wide, device=query.device).expand(batch, self.heads, -1, -1)
        return self.attend(query, key, identity, context)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D), zero on padding."""
        if self.neighbours is None:
            return super().forward(hidden_states, context)
        of_all, of_nearest = heads_for_two(self.projected(hidden_states, context.mask), self.heads)
        return self.join(self.neighbours(*of_nearest, self.estimate(*of_all, context), context), context.mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """Queries and keys (B, H, N, d), values (B, H, N, c) -> (B, H, N, c), zero on padding."""
        estimate = self.estimate(query, key, value, context)
        return estimate if self.neighbours is None else self.neighbours(query, key, value, estimate, context)

    def estimate(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """`attend` from the features alone."""
        waves, columns = self._biases(query, context)
        content = self.feature_projection[:, 2 * self.config.num_frequencies :].to(waves.dtype)
        places = self._places(context)
        seen = {"lengths": context.lengths, "causal": self.config.is_causal, "document_ids": context.document_ids}
        if self.config.feature_kind == "relu":
            features = self._features(query, key, content, waves, columns, places)
            return ops.linear_attention(*features, value, **seen)
        return ops.random_feature_attention(query, key, value, content, waves, columns, places, **seen)

    def _biases(self, query: torch.Tensor, context: BatchContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Waves of positions, and the columns (2, H, 2 r, m) that make biases of queries and keys of them."""
        if context.shared is not None and self.shares_columns(self.config):
            return context.shared
        waves, factors = self.mask(query, context) if context.shared is None else context.shared
        return waves, columns_of([self], factors)[0]

    @staticmethod
    def shares_columns(config: FLTConfig) -> bool:
        """Whether the columns of all layers are made at once: of one mask, and of projections that are no parameters,
        which only a layer itself may read."""
        return config.share_mask and config.feature_kind == "positive"

    def _features(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        projection: torch.Tensor,
        waves: torch.Tensor,
        columns: torch.Tensor,
        places: ops.Places | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of queries and keys behind a ReLU, (B, H, N, m), in fp32 or wider."""
        if places is not None:
            waves = waves[0][:, places.positions].transpose(0, 1)
        features = []
        with torch.autocast(query.device.type, enabled=False):
            for content, of_positions in zip((query, key), columns, strict=True):
                scaled = content.to(waves.dtype) * content.shape[-1] ** -0.25
                features.append(functional.relu(scaled @ projection.T + waves @ of_positions) + RELU_FLOOR)
        return tuple(features)

    def _places(self, context: BatchContext) -> ops.Places | None:
        """Which of the indices' waves are those of the tokens; None: those of their rows."""
        documents = context.document_ids
        if documents is None or context.coordinates is not None:
            return None
        return context.once(("places in documents",), functools.partial(_places_in_documents, documents))


def columns_of(layers: Sequence[SpectralAttention], factors: torch.Tensor) -> Sequence[torch.Tensor]:
    """For each layer of one mask, the columns (2, H, 2 r, m) that make biases of queries and keys of the waves.

    Args:
        layers: m rows in each projection.
        factors: what the mask's `forward` returns.
    """
    width = 2 * layers[0].config.num_frequencies
    with torch.autocast(factors.device.type, enabled=False):
        projections = [layer.feature_projection[:, :width].to(factors.dtype) for layer in layers]
        return scaled_columns(factors, torch.stack(projections))


def _places_in_documents(document_ids: torch.Tensor) -> ops.Places:
    positions = document_ids.shape[1]
    return ops.Places(positions_in_documents(document_ids, positions, document_ids.device), positions)
