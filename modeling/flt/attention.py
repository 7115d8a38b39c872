"""Linear attention whose features carry a mask of relative positions."""

import functools

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

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """Queries and keys (B, H, N, d), values (B, H, N, c) -> (B, H, N, c), zero on padding."""
        waves, factors = self.mask(query, context) if context.shared is None else context.shared
        projection = self.feature_projection.to(waves.dtype)
        for_positions, for_content = projection.split([2 * self.config.num_frequencies, query.shape[-1]], dim=1)
        with torch.autocast(query.device.type, enabled=False):
            columns = scaled_columns(factors, for_positions)
        positions = self._positions(context)
        seen = {"lengths": context.lengths, "causal": self.config.is_causal, "document_ids": context.document_ids}
        if self.config.feature_kind == "relu":
            features = self._features(query, key, for_content, waves, columns, positions)
            estimate = ops.linear_attention(*features, value, **seen)
        else:
            estimate = ops.random_feature_attention(query, key, value, for_content, waves, *columns, positions, **seen)
        return estimate if self.neighbours is None else self.neighbours(query, key, value, estimate, context)

    def _features(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        projection: torch.Tensor,
        waves: torch.Tensor,
        columns: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of queries and keys behind a ReLU, (B, H, N, m), in fp32 or wider."""
        if positions is not None:
            waves = waves[0][:, positions].transpose(0, 1)
        features = []
        with torch.autocast(query.device.type, enabled=False):
            for content, of_positions in zip((query, key), columns, strict=True):
                scaled = content.to(waves.dtype) * content.shape[-1] ** -0.25
                features.append(functional.relu(scaled @ projection.T + waves @ of_positions) + RELU_FLOOR)
        return tuple(features)

    def _positions(self, context: BatchContext) -> torch.Tensor | None:
        """Which of the indices' waves are those of the tokens, (B, N); None: those of their rows."""
        documents = context.document_ids
        if documents is None or context.coordinates is not None:
            return None
        make = functools.partial(positions_in_documents, documents, documents.shape[1], documents.device)
        return context.once(("positions in documents",), make)
